"""How far one row can move first and second moments, and how loud they may be asked for that.

Every bound is for the *sums* over a table whose columns lie in [-1, 1] (or [0, 1], the paper's
basis); ``kappa``, the loudness of the products, is 1 throughout. Rounding columns to their grid
comes first and keeps them in that box, so the bounds hold for the integers that are summed.
"""

from __future__ import annotations

from fractions import Fraction
from math import floor, isqrt

from retilt.measures.base import Norm, Relation


def rational_sqrt_down(value: Fraction) -> Fraction:
    """The largest multiple of 2**-20 whose square is at most ``value`` >= 0.

    >>> rational_sqrt_down(Fraction(9, 4))
    Fraction(3, 2)
    """
    return Fraction(isqrt(floor(value * 2**40)), 2**20)


BALL_SQUARES = rational_sqrt_down(Fraction(1, 2))
"""How loud squares are asked in a ball (beta): see :func:`ball_sensitivity`."""


def square_loudness(
    norm: Norm, relation: Relation, *, columns: int, two_valued: int, loudness: Fraction
) -> Fraction:
    """How loud the squares may be asked at no cost in sensitivity (beta, for kappa = 1).

    Parameters
    ----------
    norm, relation
        Which sensitivity must not grow.
    columns, two_valued
        d, and how many of them are two-valued, so that their squares are constant and not asked.
    loudness
        alpha, of the linear terms; r = alpha**2.

    Returns
    -------
    Fraction
        L2: the square root, rounded down, of ``1/2 + r + (d + d1)/2`` (replace-one) or
        ``r + (d + d1 - 1)/2`` (add/remove-one); L1: ``1/2`` or ``(alpha + d - 1)/2``.
        Derivations in :func:`centred_sensitivity`.
    """
    if norm == 1:
        return Fraction(1, 2) if relation is Relation.REPLACE else (loudness + columns - 1) / 2
    extra = Fraction(1, 2) if relation is Relation.REPLACE else -Fraction(1, 2)
    return rational_sqrt_down(loudness**2 + Fraction(columns + two_valued, 2) + extra)


def centred_sensitivity(
    norm: Norm, relation: Relation, *, columns: int, order: int, loudness: Fraction
) -> Fraction:
    r"""Bound of one row's effect on the scaled sums of the centred basis.

    The squares are as loud as :func:`square_loudness` allows; kappa = 1; d columns of which
    d1 are two-valued; r = alpha**2.

    Returns
    -------
    Fraction
        The squared L2 bound (``norm=2``) or the L1 bound (``norm=1``).

    Notes
    -----
    **Replace-one, L2:** ``(d + r)**2`` for r <= d, else ``4 r d``.
    Write x = z - z', y = z + z'. Then ``z_i**2 - z'_i**2 = x_i y_i`` and
    ``z_i z_j - z'_i z'_j = (x_i y_j + y_i x_j) / 2``, so with the off-diagonal terms counted
    once the squared distance is

        r |x|^2 + (|x|^2 |y|^2 + (x.y)^2) / 4 + (beta^2 - 1/2) sum (x_i y_i)^2.

    Since ``|x_i| + |y_i| <= 2`` and everything grows with |x_i| and |y_i|, put
    ``|x_i| = 1 + c_i, |y_i| = 1 - c_i`` with c in [-1, 1]; S = sum c_i^2, C = sum c_i. With
    ``|x.y| <= sum |x_i||y_i| = d - S`` the distance is at most

        r (d + 2C + S) + (d^2 + S^2) / 2 - C^2 + (beta^2 - 1/2) sum (1 - c_i^2)^2.

    ``2rC - C^2 <= r^2`` (at C = r <= d; for r > d the largest C is d, which gives 2rd - d^2).
    What is left, ``r S + S^2/2 + (beta^2 - 1/2) sum (1 - w_i)^2`` with w = c^2 in [0, 1], is
    convex in w, so it is largest where every w_i is 0 or 1; with m ones it is
    ``r m + m^2/2 + (beta^2 - 1/2)(d - m)``, convex in m, so m = d or m as small as possible.
    A two-valued column has |c_i| = 1 always, so that is m = d1, and the bracket there does not
    exceed its value at m = d as long as ``beta^2 <= 1/2 + r + (d + d1)/2``. Then the total is
    ``r^2 + r d + d^2/2 + r d + d^2/2 = (d + r)^2``.

    **Replace-one, L1** (beta = 1/2): ``(d + alpha)**2 / 2`` for alpha <= d, else
    ``2 alpha d``. The products and the squares at 1/2 are half the entries of
    ``zz' - z'z''``, whose sum of absolute values is at most |x|_1 |y|_1; with X = |x|_1 and
    ``|y|_1 <= 2d - X`` the distance is at most ``alpha X + X (2d - X) / 2``, largest at
    X = d + alpha <= 2d, or at X = 2d.

    **Add/remove-one, L2** (the squares are asked as ``beta (1 - z_i^2)``):
    ``r d + d (d - 1) / 2``. The squared length
    ``r sum w_i + sum_{i<j} w_i w_j + beta^2 sum (1 - w_i)^2`` is convex in every w_i = z_i^2,
    so largest where all are 0 or 1; with m ones it is
    ``r m + m (m - 1)/2 + beta^2 (d - m)``, convex in m >= d1, and m = d1 does not exceed
    m = d as long as ``beta^2 <= r + (d + d1 - 1)/2``.

    **Add/remove-one, L1** (beta = (alpha + d - 1)/2): ``alpha d + d (d - 1) / 2``. With
    v_i = |z_i|, V = sum v_i and ``sum v_i^2 >= V^2 / d`` the length is at most
    ``beta d + alpha V + V^2/2 - (1/2 + beta) V^2 / d``, whose slope on [0, d] is never
    negative exactly when ``beta <= (alpha + d - 1)/2``; its value at V = d is the bound.
    (Columns with v_i = 1 fixed add ``d1`` to alpha for the rest, which gives the same
    condition.)

    **Order 1** (only ``z_i``, alpha = 1): each moves by at most 2 (replace) or 1
    (add/remove): 4d or d squared in L2, 2d or d in L1.

    Examples
    --------
    >>> centred_sensitivity(2, Relation.REPLACE, columns=5, order=2, loudness=Fraction(1))
    Fraction(36, 1)
    >>> centred_sensitivity(1, Relation.REPLACE, columns=5, order=2, loudness=Fraction(1))
    Fraction(18, 1)
    """
    d, a = columns, loudness
    r = a * a
    if order == 1:
        step = 2 * a if relation is Relation.REPLACE else a
        return d * (step if norm == 1 else step * step)
    if relation is Relation.REPLACE:
        if norm == 2:
            return (d + r) ** 2 if r <= d else 4 * r * d
        return (d + a) ** 2 / 2 if a <= d else 2 * a * d
    pairs = Fraction(d * (d - 1), 2)
    return (r if norm == 2 else a) * d + pairs


def ball_sensitivity(relation: Relation, *, loudness: Fraction) -> Fraction:
    r"""Squared L2 bound of one row's effect on the scaled sums of moments in a ball.

    Rows w of the unit ball, |w| <= 1, are asked ``alpha w_i``, ``beta w_i**2`` and ``w_i w_j``
    (i < j); r = alpha**2.

    Parameters
    ----------
    relation
        Which tables are neighbours.
    loudness
        alpha, at most 1. Beta is :data:`BALL_SQUARES`.

    Returns
    -------
    Fraction
        Replace-one: ``(1 + r)**2``. Add/remove-one: ``r + 1/2``.

    Notes
    -----
    With ``beta**2 <= 1/2`` the squared length of a row's vector is
    ``r |w|^2 + sum_{i<j} w_i^2 w_j^2 + beta^2 sum w_i^4 <= r |w|^2 + |w|^4 / 2``, at most
    ``r + 1/2``. For two rows, u = w.w', off-diagonal terms stand twice in
    ``|ww' - w'w''|^2 = |w|^4 + |w'|^4 - 2 u^2`` (Frobenius), so with ``beta**2 <= 1/2`` the
    squared distance is at most

        r (|w|^2 + |w'|^2 - 2u) + (|w|^4 + |w'|^4 - 2 u^2) / 2,

    which for a given u grows with both lengths: at most ``2 r - 2 r u + 1 - u^2``, largest at
    u = -r, which r <= 1 allows: ``(1 + r)**2``. That covers a row that comes or goes as well:
    ``r + 1/2 <= (1 + r)**2``.

    Unlike in the box the squares can't be asked louder for nothing: unit rows along two
    different axes have distance ``2 r + 2 beta^2`` squared, which would exceed ``(1 + r)**2``
    for ``beta^2 > (1 + r^2) / 2``; and near r = 0 nothing is left.

    >>> ball_sensitivity(Relation.REPLACE, loudness=Fraction(1, 2))
    Fraction(25, 16)
    """
    r = loudness**2
    return (1 + r) ** 2 if relation is Relation.REPLACE else r + Fraction(1, 2)


def paper_sensitivity(queries: int) -> Fraction:
    """Bound of the paper's basis: K, both as the squared L2 and as the L1 bound.

    Every query is a product of numbers in [0, 1], so one row moves each of the K sums by at
    most 1 under either neighbour relation: ``sum 1**2 = sum 1 = K``. With no two-valued
    column K = d(d + 3)/2, the paper's bound; a row of zeros against a row of ones attains it.

    >>> paper_sensitivity(20)
    Fraction(20, 1)
    """
    return Fraction(queries)


# --- within groups -----------------------------------------------------------------------


def grouped_square_loudness(
    norm: Norm,
    relation: Relation,
    *,
    several: bool,
    columns: int,
    two_valued: int,
    loudness: Fraction,
) -> Fraction:
    """How loud the squares may be asked within groups: beta, for kappa = 1.

    The squares are asked as ``1 - z**2``, so that the vector of a row itself is short. Both
    bounds of :func:`grouped_sensitivity` must hold: the smaller of the two loudnesses of
    :func:`square_loudness`. Only in L1 with several groups does the bound of two rows of one
    group play no part. Parameters as for these.
    """
    options = {"columns": columns, "two_valued": two_valued, "loudness": loudness}
    alone = square_loudness(norm, Relation.ADD_REMOVE, **options)  # type: ignore[arg-type]
    if relation is Relation.ADD_REMOVE or (norm == 1 and several):
        return alone
    return min(alone, square_loudness(norm, relation, **options))  # type: ignore[arg-type]


def grouped_sensitivity(
    norm: Norm,
    relation: Relation,
    *,
    several: bool,
    columns: int,
    order: int,
    loudness: Fraction,
    count: Fraction,
) -> Fraction:
    r"""Bound of one row's effect on the scaled sums of moments within groups.

    In each group g of rows the count is asked at loudness c, and the columns' moments q(z) in
    the centred basis (the squares as ``1 - z**2``) over the rows of the group: a row of g has
    the vector (c, q(z)) in g and zeros elsewhere; a row of no group has zeros everywhere.

    Parameters
    ----------
    norm, relation
        Of the bound.
    several
        Whether there is more than one group.
    columns, order, loudness
        d; 1 or 2; alpha, of the linear terms (r = alpha**2).
    count
        c, above 0.

    Returns
    -------
    Fraction
        The squared L2 bound (``norm=2``) or the L1 bound (``norm=1``).

    Notes
    -----
    Write D for the bound of two rows' q(z) - q(z') and L for that of one row's q(z), both of
    :func:`centred_sensitivity` (replace-one and add/remove-one; squared for L2): that the
    squares are turned into complements leaves differences as they are. p is the norm.

    **Add/remove-one**: ``c**p + L``, the length of one row's vector.

    **Replace-one**: the two rows are in the same group (the counts stay: D), or in different
    groups (disjoint coordinates: ``2 (c**p + L)``), or one of them is in none
    (``c**p + L``, also where a row comes or goes). With several groups that is
    ``max(D, 2 (c**p + L))``, with one ``max(D, c**p + L)``. So the count costs nothing up to
    ``c**p = D/2 - L`` or ``D - L``:

    =======  ==========  ==========================  =============================
    norm     groups      order 1                     order 2
    =======  ==========  ==========================  =============================
    L2       several     c^2 = d                     c^2 = (d + r^2) / 2
    L2       one         c^2 = 3 d                   c^2 = (d + r)^2 - r d - d(d-1)/2
    L1       several     (D = 2 d = 2 L: nothing)    (nothing)
    L1       one         c = d                       c = (d + alpha^2) / 2
    =======  ==========  ==========================  =============================

    In L1 with several groups two rows of the same group differ by no more than 2 L, by the
    triangle inequality, whatever the loudness of the squares: the bound is ``2 (c + L)`` and D
    is not needed.

    Examples
    --------
    >>> options = {"columns": 1, "order": 1, "loudness": Fraction(1), "count": Fraction(1)}
    >>> grouped_sensitivity(2, Relation.REPLACE, several=True, **options)
    Fraction(4, 1)
    >>> grouped_sensitivity(1, Relation.REPLACE, several=True, **options)
    Fraction(4, 1)
    """
    options = {"columns": columns, "order": order, "loudness": loudness}
    alone = count**norm + centred_sensitivity(norm, Relation.ADD_REMOVE, **options)  # type: ignore[arg-type]
    if relation is Relation.ADD_REMOVE:
        return alone
    if norm == 1 and several:
        return 2 * alone
    together = centred_sensitivity(norm, relation, **options)  # type: ignore[arg-type]
    return max(together, (2 if several else 1) * alone)


def free_count(
    norm: Norm, relation: Relation, *, several: bool, columns: int, order: int, loudness: Fraction
) -> Fraction:
    """The loudness up to which the counts of groups cost nothing, rounded down; often 0.

    See the table in :func:`grouped_sensitivity`.

    >>> free_count(
    ...     2, Relation.REPLACE, several=True, columns=4, order=1, loudness=Fraction(1)
    ... )
    Fraction(2, 1)
    """
    options = {"columns": columns, "order": order, "loudness": loudness}
    if relation is Relation.ADD_REMOVE or (norm == 1 and several):
        return Fraction(0)
    together = centred_sensitivity(norm, relation, **options)  # type: ignore[arg-type]
    alone = centred_sensitivity(norm, Relation.ADD_REMOVE, **options)  # type: ignore[arg-type]
    spare = max(together / (2 if several else 1) - alone, Fraction(0))
    return spare if norm == 1 else rational_sqrt_down(spare)
