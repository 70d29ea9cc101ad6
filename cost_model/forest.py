"""Boosted trees without scikit-learn: all of them evaluated at once, in pure Python.

A node whose test fails rules out the leaves on its left. With every leaf of every tree a bit of one integer, all that
the nodes of one feature rule out is one mask, found by the place of its value among their thresholds. Of what all
features leave, the first leaf of each tree is the one where a walk from its root would end (QuickScorer: Lucchese et
al., SIGIR 2015). That takes seventy steps for 128 trees of depth 5, and walks take six hundred.
"""

from __future__ import annotations

import itertools
import math
import struct
from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import and_, getitem
from typing import NamedTuple

from ..space import BadInput

LEAF = -1

MOST_LEAVES = 32
"""Leaves of a tree, each a bit of a word: as many as a tree of depth 5 has."""

Node = tuple[int, float, int, int]
"""(feature, threshold, left, right): left when the feature is at most the threshold. At a leaf the feature is
`LEAF` and the threshold is the leaf's value."""

Tree = tuple[Node, ...]
"""The root first, and every other node after the one that it is the child of."""


class Split(NamedTuple):
    """All nodes that test one feature."""

    thresholds: tuple[float, ...]
    """Ascending."""
    kept: tuple[int, ...]
    """The leaves that are not ruled out where none of the thresholds is exceeded, the first, the first two, and so
    on."""


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """Members, each a first guess and the trees that are added to it."""

    members: tuple[tuple[float, int], ...]
    """Each: the first guess, and how many trees."""
    leaves: tuple[tuple[float, ...], ...]
    """Of each tree the values of its leaves, in the order of their bits."""
    splits: Mapping[str, Split]
    """For each feature."""
    words: str
    """How `struct` unpacks those of all trees, the first of them lowest in the integer."""
    ones: int
    """The lowest bit of every word."""

    @classmethod
    def of(cls, members: Sequence[tuple[float, Sequence[Tree]]], features: Sequence[str]) -> Forest:
        """The forest of one or more members, whose trees number the features so."""
        tests: list[list[tuple[float, int]]] = [[] for _ in features]
        leaves: list[tuple[float, ...]] = []
        for tree in itertools.chain.from_iterable(trees for _, trees in members):
            leaves.append(_leaves(tree, 0, len(leaves) * MOST_LEAVES, tests))
        everything = (1 << MOST_LEAVES * len(leaves)) - 1
        return cls(
            members=tuple((first, len(trees)) for first, trees in members),
            leaves=tuple(leaves),
            splits={name: _split(nodes, everything) for name, nodes in zip(features, tests, strict=True)},
            words=f"<{len(leaves)}I",
            ones=everything // ((1 << MOST_LEAVES) - 1),
        )

    def kept(self, x: Mapping[str, float]) -> int:
        """The leaves that are not ruled out by some of the features, whose values are rounded to single precision, as
        scikit-learn's trees see them."""
        kept = -1
        for name, value in zip(x, array("f", x.values()), strict=True):
            thresholds, masks = self.splits[name]
            kept &= masks[bisect_left(thresholds, value)]
        return kept

    def values(self, kept: int) -> list[float]:
        """What each member says, with the leaves that are not ruled out by any feature."""
        # Those before the first that is kept of each tree: no word is zero, so that taking one from each borrows from
        # none.
        before = ~kept & (kept - self.ones)
        words = struct.unpack(self.words, before.to_bytes(struct.calcsize(self.words), "little"))
        values = map(getitem, self.leaves, map(int.bit_length, words))
        return [sum(itertools.islice(values, trees), first) for first, trees in self.members]

    @property
    def reach(self) -> float:
        """The largest absolute value that a member can come to."""
        values = (max(map(abs, leaves)) for leaves in self.leaves)
        return max(abs(first) + sum(itertools.islice(values, trees)) for first, trees in self.members)


def read_tree(nodes: Sequence[Sequence[float]], features: int) -> Tree:
    """A tree that tests that many features, from its nodes as JSON has them.

    Raises:
        BadInput: the nodes are no such tree, or one with more than MOST_LEAVES leaves.
        TypeError, ValueError, OverflowError: they are no nodes.
    """
    tree: list[Node] = []
    for place, (feature, threshold, left, right) in enumerate(nodes):
        node = int(feature), float(threshold), int(left), int(right)
        known = 0 <= node[0] < features and place < node[2] and place < node[3]
        if not (math.isfinite(node[1]) and (known or node[0] == LEAF)):
            raise BadInput(f"node {place} of a tree is {node}: valid is a leaf, or a known feature and later nodes")
        tree.append(node)
    children = sorted(child for node in tree if node[0] != LEAF for child in node[2:])
    if not tree or children != list(range(1, len(tree))):
        raise BadInput(f"{len(tree)} nodes are no tree: valid is a root, and others that are each the child of one")
    if (leaves := len(tree) - len(children) // 2) > MOST_LEAVES:
        raise BadInput(f"a tree has {leaves} leaves: valid is at most {MOST_LEAVES}")
    return tuple(tree)


def _leaves(tree: Tree, node: int, first: int, tests: list[list[tuple[float, int]]]) -> tuple[float, ...]:
    """The values of the leaves under a node, from left to right; the first is bit `first` of the integer. To `tests` go
    the threshold of every node, by its feature, and the leaves that it rules out."""
    feature, threshold, left, right = tree[node]
    if feature == LEAF:
        return (threshold,)
    values = _leaves(tree, left, first, tests)
    middle = first + len(values)
    tests[feature].append((threshold, (1 << middle) - (1 << first)))
    return values + _leaves(tree, right, middle, tests)


def _split(nodes: Sequence[tuple[float, int]], everything: int) -> Split:
    thresholds, ruled_out = zip(*sorted(nodes), strict=True) if nodes else ((), ())
    kept = itertools.accumulate((everything ^ leaves for leaves in ruled_out), and_, initial=everything)
    return Split(thresholds, tuple(kept))
