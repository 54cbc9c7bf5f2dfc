"""Speed, measured; never run by the tests."""
