"""The convex program behind hybrid-RDP noise (Alg. 1), solved by an interior-point method in O(R) a Newton step."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_solve_banded, cholesky_banded

from lightning_pac.information import Array


@dataclass(frozen=True)
class HybridRenyiProgram:
    """Distributions p on {0..R} whose T-fold release is (epsilon, delta)-DP by hybrid RDP of one order a.

    With `S_up = sum_i p_i^a p_{i-1}^{1-a}` the condition reads
    `S_up <= (e^{(a-1) epsilon} (delta - T p_0))^{1/T}`, and its mirror for `S_down` with `p_R`. The left side is convex
    and the right side concave in the *whole* of p, so there is nothing to alternate over (Alg. 1 alternates between the
    tails and the rest). Each summand is a power cone, `p_i <= s_i^{1/a} p_{i-1}^{1-1/a}`, whose logarithmic barrier is
    self-concordant; eliminating `s` leaves a tridiagonal system and one rank for each constraint.

    Args:
        moments: Cost of each value, shape (R + 1,), not negative.
        order: Rényi order a > 1.
        epsilon: Target of the composition.
        delta: Failure probability of the composition, tails included.
        compositions: Number T of releases.
    """

    moments: Array
    order: float
    epsilon: float
    delta: float
    compositions: int

    def minimize_moment(self, start: Array, relative_gap: float = 1e-5) -> Array | None:
        """The feasible distribution of least `moments @ p`, or None where none exists.

        Args:
            start: A positive distribution with both tails below `delta / T`.
            relative_gap: Relative suboptimality at which to stop.
        """
        state = self._reach(start, goal=0.0)
        # The level never passed below 0: the constraints cannot be met with room to spare.
        if state.level >= 0.0:
            return None
        state = state._replace(level=0.0)
        # The gap of a centred point is (number of barriers) / weight; the first is as large as the objective itself.
        weight = self._num_barriers(state) / float(self.moments @ state.p)
        while True:
            state = self._center(state, weight * self.moments, 0.0)
            if self._num_barriers(state) <= relative_gap * weight * float(self.moments @ state.p):
                return np.asarray(state.p / state.p.sum())
            weight *= 30.0

    def minimize_violation(self, start: Array) -> Array:
        """The distribution that comes closest to meeting both constraints (or meets them by most)."""
        state = self._reach(start, goal=float("-inf"))
        return np.asarray(state.p / state.p.sum())

    def _reach(self, start: Array, goal: float) -> "_State":
        # Phase one: start strictly inside the cones, and relax both constraints by a level that is then
        # pushed down.
        logs = np.log(start)
        summands = [
            # Half as much again as the cone's edge, and a part of p for where the edge underflows.
            np.exp(self.order * logs[1:] + (1.0 - self.order) * logs[:-1]) * 1.5 + start[1:] * 1e-3,
            np.exp(self.order * logs[:-1] + (1.0 - self.order) * logs[1:]) * 1.5 + start[:-1] * 1e-3,
        ]
        excess = max(
            float(summand.sum()) - self._ceiling(mass)
            for summand, mass in zip(summands, (start[0], start[-1]), strict=True)
        )
        state = _State(start, tuple(summands), excess + 0.1 * abs(excess) + 1e-12)
        scale = 1.0 / self.compositions
        weight = self._num_barriers(state) / max(abs(state.level), scale)
        while True:
            state = self._center(state, np.zeros_like(start), weight, goal)
            gap = self._num_barriers(state) / weight
            # Past the goal, proven not to reach it, or as low as it gets.
            if state.level < goal or state.level - gap > goal > float("-inf") or gap < 1e-6 * scale:
                return state
            weight *= 30.0

    def _center(self, state: "_State", linear: Array, level_weight: float, goal: float = float("-inf")) -> "_State":
        value = self._barrier(state, linear, level_weight)
        for _ in range(200):
            if self._least_slack(state) <= 1e-14 * float(max(summand.sum() for summand in state.summands)):
                break  # nothing but rounding is left; what is returned is accounted for anew
            direction, decrement = self._newton(state, linear, level_weight)
            # Half the squared decrement estimates what is left to gain; the centre need not be met exactly.
            if not decrement > 1e-3:
                break
            # Steps are relative, so one of 1 / largest would take an entry to zero.
            largest = max(float(np.max(-direction.p)), *(float(np.max(-change)) for change in direction.summands))
            step = min(1.0, 0.95 / max(1e-300, largest))
            least = self._least_slack(state)
            while step > 1e-9:
                candidate = state.moved(direction, step)
                candidate_value = self._barrier(candidate, linear, level_weight)
                # A slack that collapses in one step costs a logarithm and leaves nothing but rounding to work with.
                kept = self._least_slack(candidate) > 1e-2 * least
                # Armijo's condition, with an allowance for the rounding of the barrier.
                if kept and candidate_value <= value - 0.05 * step * decrement + 1e-13 * abs(value):
                    break
                step *= 0.5
            else:
                break
            state, value = candidate, candidate_value
            if state.level < goal:
                break
        return state

    def _newton(self, state: "_State", linear: Array, level_weight: float) -> "tuple[_Direction, float]":
        # Both constraints read the noise from their own end; their cones couple neighbours only.
        # Gradients and Hessians are in relative coordinates d_i = dp_i / p_i: probabilities differ by many orders.
        p = state.p
        gradient, diagonal, stiffness = linear * p, np.zeros_like(p), np.zeros(p.size - 1)
        sides = [self._side(state, reverse) for reverse in (False, True)]
        for side in sides:
            gradient += side.gradient[side.along_p]
            diagonal += side.diagonal[side.along_p]
            stiffness += side.cones.stiffness[side.along_p]
        ranks = [side.rank[side.along_p] for side in sides]
        # The relative fall u of a constraint's slack borders the system; with the summands eliminated its own entry is
        # 1 + w^T diag(1 / curvature) w.
        rank_diagonal = [1.0 + float(side.weights @ (side.weights / side.cones.curvature)) for side in sides]
        rank_right = [float(side.weights @ (side.summand_gradient / side.cones.curvature)) for side in sides]
        levels = [1.0 / side.slack for side in sides]
        # The two constraints' sums add a rank-one term each to the tridiagonal Hessian.
        system = _Bordered(gradient, diagonal, stiffness, np.column_stack(ranks), p)
        unknowns, d = system.solve(
            np.array(rank_diagonal),
            np.array(rank_right),
            np.array(levels),
            level_weight - sum(levels) if level_weight > 0.0 else None,
        )
        # The squared Newton decrement as a sum of squares: -gradient @ direction cancels to nothing near the optimum.
        decrement = float(np.square(unknowns[: len(ranks)]).sum() + diagonal @ d**2 + stiffness @ np.diff(d) ** 2)
        changes = []
        # Recover the steps of the summands that were eliminated.
        for side, unknown in zip(sides, unknowns, strict=False):
            own = -(side.summand_gradient + side.weights * unknown) / side.cones.curvature
            decrement += float(side.cones.curvature @ own**2)
            towards = d[side.along_p]
            change = own - side.cones.from_left * towards[:-1] - side.cones.from_right * towards[1:]
            changes.append(change[side.along_p])
        return _Direction(d, tuple(changes), float(unknowns[-1]) if level_weight > 0.0 else 0.0), decrement

    def _side(self, state: "_State", reverse: bool) -> "_Side":
        along_p = slice(None, None, -1) if reverse else slice(None)
        p, summand = state.p[along_p], state.summands[int(reverse)][along_p]
        cones = _eliminate_summands(p, summand, self.order)
        ceiling = self._ceiling(float(p[0]))
        slack = ceiling + state.level - float(summand.sum())
        # Relative slope of the ceiling in ln p_0, with the opposite sign; that of delta - T p_0 is T times as large.
        tail = float(p[0]) / (self.delta - self.compositions * float(p[0]))
        # The barrier -ln(slack) of `sum(s) <= ceiling + level`, where the ceiling falls as the tail p_0 takes
        # from delta.
        weights = summand / slack
        rank = np.zeros_like(p)
        rank[:-1] -= cones.from_left * weights
        rank[1:] -= cones.from_right * weights
        rank[0] += ceiling * tail / slack
        gradient, diagonal = np.zeros_like(p), np.zeros_like(p)
        gradient[:-1] -= cones.left + cones.from_left * weights
        gradient[1:] -= cones.right + cones.from_right * weights
        gradient[0] += ceiling * tail / slack + self.compositions * tail
        diagonal[:-1] += cones.left
        diagonal[1:] += cones.right
        # p_0^2 times the second derivatives of -ceiling / slack and of -ln(delta - T p_0).
        diagonal[0] += ceiling * (self.compositions - 1) * tail**2 / slack + (self.compositions * tail) ** 2
        return _Side(along_p, cones, slack, weights, cones.summand_gradient + weights, rank, gradient, diagonal)

    def _barrier(self, state: "_State", linear: Array, level_weight: float) -> float:
        p = state.p
        if not (p.min() > 0.0 and min(summand.min() for summand in state.summands) > 0.0):
            return float("inf")
        value = float(linear @ p) + level_weight * state.level
        theta = 1.0 / self.order
        for reverse, summand in zip((False, True), state.summands, strict=True):
            side = slice(None, None, -1) if reverse else slice(None)
            q, s = p[side], summand[side]
            # The power cone `s_i >= p_i^a p_{i-1}^{1-a}` is inside where the margin is positive.
            margin = _margin(q, s, self.order)
            slack = self._ceiling(float(q[0])) + state.level - float(summand.sum())
            if not (margin.min() > 0.0 and slack > 0.0):
                return float("inf")
            # -ln(s^theta p_{i-1}^{1-theta} - p_i) - theta ln p_{i-1} - (1 - theta) ln s with theta = 1/a,
            # the difference in the form p_i (e^margin - 1), which keeps its digits near the cone's edge.
            logs = np.log(q)
            value -= float(np.sum(np.log(np.expm1(margin)) + logs[1:] + theta * logs[:-1]))
            value -= (1.0 - theta) * float(np.log(s).sum())
            value -= float(np.log(slack) + np.log(self.delta - self.compositions * q[0]))
        return value

    def _least_slack(self, state: "_State") -> float:
        return min(
            self._ceiling(float(mass)) + state.level - float(summand.sum())
            for mass, summand in zip((state.p[0], state.p[-1]), state.summands, strict=True)
        )

    def _ceiling(self, mass: float) -> float:
        room = self.delta - self.compositions * mass
        if room <= 0.0:
            return float("-inf")
        # (e^{(a-1) epsilon} (delta - T p_0))^{1/T}; the exponential overflows before the root is taken.
        return float(np.exp(((self.order - 1.0) * self.epsilon + np.log(room)) / self.compositions))

    def _num_barriers(self, state: "_State") -> float:
        # Barrier parameter: 2 for each of the 2 R cones, and one or so for each slack and room.
        return 4.0 * (state.p.size - 1) + 5.0


class _State(NamedTuple):
    p: Array
    summands: tuple[Array, ...]  # epigraph variables of S_up and S_down
    level: float  # the constraints are relaxed by this much

    def moved(self, direction: "_Direction", step: float) -> "_State":
        return _State(
            self.p * (1.0 + step * direction.p),
            tuple(s * (1.0 + step * d) for s, d in zip(self.summands, direction.summands, strict=True)),
            self.level + step * direction.level,
        )


class _Direction(NamedTuple):
    """A Newton step, relative to the state in `p` and in the summands."""

    p: Array
    summands: tuple[Array, ...]
    level: float


class _Cones(NamedTuple):
    """The power cones' barrier with the summands minimized out, in relative coordinates.

    Its Hessian is `stiffness (d_i - d_{i-1})^2 + left d_{i-1}^2 + right d_i^2`, its gradient `(-left, -right)`.
    """

    stiffness: Array
    left: Array
    right: Array
    curvature: Array  # of each summand
    summand_gradient: Array
    from_left: Array  # cross curvature with p_{i-1} over the summand's own
    from_right: Array


def _margin(p: Array, s: Array, order: float) -> Array:
    logs = np.log(p)
    margin: Array = (np.log(s) - logs[:-1]) / order - (logs[1:] - logs[:-1])
    return margin


def _eliminate_summands(p: Array, s: Array, order: float) -> _Cones:
    """Minimize each cone's barrier over its summand; the cancellations between large terms are done on paper."""
    theta = 1.0 / order
    # 1 / (e^margin - 1), from which all derivatives of the barrier in relative coordinates are made.
    push = 1.0 / np.expm1(_margin(p, s, order))
    own = 1.0 + theta * push
    cross = push * (1.0 + push)
    curvature = cross * theta**2 + own
    excess = (1.0 - theta) * push / curvature
    return _Cones(
        stiffness=(1.0 - theta) * cross * own / curvature,
        left=1.0 + (1.0 - theta) * excess,
        right=-excess,
        curvature=curvature,
        summand_gradient=-own,
        from_left=cross * theta * (1.0 - theta) / curvature,
        from_right=-cross * theta / curvature,
    )


class _Side(NamedTuple):
    """One constraint's share of the Newton system, indexed from its unreachable end."""

    along_p: slice
    cones: _Cones
    slack: float
    weights: Array
    summand_gradient: Array
    rank: Array
    gradient: Array
    diagonal: Array


class _Bordered(NamedTuple):
    """A Newton step's equations: `stiffness (d_i - d_{i-1})^2 + diagonal d_i^2`, ranks, sum(p) = 1, and a level."""

    gradient: Array
    diagonal: Array
    stiffness: Array
    ranks: Array
    p: Array

    def solve(
        self, rank_diagonal: Array, rank_right: Array, levels: Array, level_gradient: float | None
    ) -> tuple[Array, Array]:
        """Return the unknowns (one for each rank, the multiplier, the level if it moves) and the step in p."""
        count = rank_diagonal.size
        # Schur complement: solve the tridiagonal block by Cholesky, then the few bordering unknowns densely.
        border = np.column_stack([self.ranks, self.p])
        # Upper band form: superdiagonal above the diagonal.
        banded = np.zeros((2, self.p.size))
        banded[0, 1:] = -self.stiffness
        banded[1] = self.diagonal
        banded[1, 1:] += self.stiffness
        banded[1, :-1] += self.stiffness
        factor = cholesky_banded(banded, check_finite=False)
        solved = cho_solve_banded((factor, False), border, check_finite=False)
        size = count + 1 + int(level_gradient is not None)
        corner = np.zeros((size, size))
        corner[range(count), range(count)] = rank_diagonal
        right = np.concatenate([rank_right, [1.0 - float(self.p.sum())]])
        if level_gradient is not None:
            corner[:count, -1] = corner[-1, :count] = levels
            right = np.append(right, -level_gradient)
        system = corner.copy()
        system[: count + 1, : count + 1] += border.T @ solved
        unknowns, d = np.zeros(size), np.zeros_like(self.p)
        # The ranks are enormous near the optimum: two rounds of refinement, with the residual taken from differences.
        for _ in range(3):
            upper = -(self.gradient + self._apply(d) + border @ unknowns[: count + 1])
            lower = right + corner @ unknowns
            lower[: count + 1] -= border.T @ d
            first = cho_solve_banded((factor, False), upper, check_finite=False)
            lower[: count + 1] -= border.T @ first
            change = np.linalg.solve(system, -lower)
            unknowns += change
            d += first - solved @ change[: count + 1]
        return unknowns, d

    def _apply(self, d: Array) -> Array:
        # The tridiagonal product by differences, which lose no digits where neighbours move alike.
        flow = self.stiffness * np.diff(d)
        product = self.diagonal * d
        product[:-1] -= flow
        product[1:] += flow
        return product
