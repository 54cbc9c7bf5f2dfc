"""The paper's experiments as one suite: inputs, methods, scores, tables (``experiments.paper``)."""
