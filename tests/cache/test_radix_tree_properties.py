"""The radix tree against a model too simple to be wrong: a dictionary from every cached prefix to its last block."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.cache.integrity import tree_violations
from headrace.cache.packed_tokens import pack_tokens
from headrace.cache.radix_node import RadixNode
from headrace.cache.radix_tree import RadixTree

BLOCK_SIZE = 2

Prefix = tuple[str, tuple[int, ...]]
"""A namespace and whole blocks of tokens; or a last block that is not full."""

namespaces = st.sampled_from(["", "a"])
few_tokens = st.lists(st.integers(0, 1), max_size=5 * BLOCK_SIZE)


@dataclass
class Held:
    """One lock: the node the tree gave for it, and the prefix it stands for."""

    node: RadixNode
    prefix: Prefix


def prefixes_of(prefix: Prefix) -> list[Prefix]:
    """All non-empty ones in whole blocks, shortest first, itself included."""
    namespace, token_ids = prefix
    return [(namespace, token_ids[:end]) for end in range(BLOCK_SIZE, len(token_ids) + 1, BLOCK_SIZE)]


def parent_of(prefix: Prefix) -> Prefix:
    """What stands before the last block."""
    namespace, token_ids = prefix
    return namespace, token_ids[: (len(token_ids) - 1) // BLOCK_SIZE * BLOCK_SIZE]


class TreeAgainstDictionary(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tree = RadixTree(BLOCK_SIZE)
        self.held: list[Held] = []
        self.block_of: dict[Prefix, int] = {}
        self.unlocked_at: dict[Prefix, int] = {}
        self.num_blocks_made = 0
        self.tick = 0

    # -- the model ----------------------------------------------------------------------------------

    def longest_cached(self, prefix: Prefix) -> Prefix:
        cached = [candidate for candidate in prefixes_of(prefix) if candidate in self.block_of]
        return cached[-1] if cached else (prefix[0], ())

    def is_locked(self, prefix: Prefix) -> bool:
        if not prefix[1]:
            return any(held.prefix[0] == prefix[0] for held in self.held)
        return any(prefix in prefixes_of(held.prefix) for held in self.held)

    def next_to_go(self) -> Prefix | None:
        """The unlocked prefix without a continuation that was unlocked longest ago."""
        parents = set(map(parent_of, self.block_of))
        leaves = [prefix for prefix in self.block_of if prefix not in parents and not self.is_locked(prefix)]
        return min(leaves, key=self.unlocked_at.__getitem__, default=None)

    # -- what can happen ----------------------------------------------------------------------------

    @rule(namespace=namespaces, token_ids=few_tokens)
    def match_and_lock(self, namespace: str, token_ids: list[int]) -> None:
        match = self.tree.match(namespace, pack_tokens(token_ids))
        prefix = self.longest_cached((namespace, tuple(token_ids)))
        assert match.block_ids == [self.block_of[known] for known in prefixes_of(prefix)]
        self.held.append(Held(self.tree.lock(match), prefix))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), token_ids=few_tokens)
    def insert_after_a_held_prefix(self, data: st.DataObject, token_ids: list[int]) -> None:
        held = data.draw(st.sampled_from(self.held))
        token_ids = token_ids[: len(token_ids) // BLOCK_SIZE * BLOCK_SIZE]
        offered = list(range(self.num_blocks_made, self.num_blocks_made + len(token_ids) // BLOCK_SIZE))
        self.num_blocks_made += len(offered)
        held.node, block_ids = self.tree.insert(held.node, pack_tokens(token_ids), offered)

        num_held = len(prefixes_of(held.prefix))
        held.prefix = (held.prefix[0], held.prefix[1] + tuple(token_ids))
        for prefix, block_id in zip(prefixes_of(held.prefix)[num_held:], offered, strict=True):
            self.block_of.setdefault(prefix, block_id)
        assert block_ids == [self.block_of[prefix] for prefix in prefixes_of(held.prefix)[num_held:]]

    @precondition(lambda self: self.held)
    @rule(data=st.data(), token_id=st.integers(0, 1))
    def leave_an_open_block(self, data: st.DataObject, token_id: int) -> None:
        held = data.draw(st.sampled_from(self.held))
        block_id = self.num_blocks_made
        self.num_blocks_made += 1
        namespace, token_ids = held.prefix
        opened = (namespace, (*token_ids, token_id))
        if opened in self.block_of:
            return
        self.tree.add_open_leaf(held.node, pack_tokens([token_id]), block_id)
        self.tick += 1
        self.block_of[opened] = block_id
        self.unlocked_at[opened] = self.tick

    @rule()
    def use_what_is_next_to_go(self) -> None:
        prefix = self.next_to_go()
        if prefix is None or not self.is_locked(parent_of(prefix)):
            return
        node = next(iter(self.tree.eviction_order()))
        if len(node.block_ids) == 1:
            self.tree.touch(node)
            self.tick += 1
            self.unlocked_at[prefix] = self.tick

    @rule()
    def drop_what_is_next_to_go(self) -> None:
        prefix = self.next_to_go()
        if prefix is not None:
            leaf = next(iter(self.tree.eviction_order()))
            gone = self.tree.drop_leaf(leaf)
            assert gone[-1] == self.block_of[prefix]
            self.block_of = {known: block_id for known, block_id in self.block_of.items() if block_id not in gone}

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        held = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.tree.unlock(held.node)
        self.tick += 1
        for prefix in prefixes_of(held.prefix):
            if not self.is_locked(prefix):
                self.unlocked_at[prefix] = self.tick

    @rule(num_blocks=st.integers(0, 6))
    def evict(self, num_blocks: int) -> None:
        expected = []
        while len(expected) < num_blocks and (prefix := self.next_to_go()) is not None:
            expected.append(self.block_of.pop(prefix))
        assert sorted(self.tree.evict(num_blocks)) == sorted(expected)

    # -- what must hold -----------------------------------------------------------------------------

    @invariant()
    def the_books_are_right(self) -> None:
        assert tree_violations(self.tree, [held.node for held in self.held]) == []

    @invariant()
    def the_tree_holds_just_the_cached_prefixes(self) -> None:
        found = {}
        for node in self.tree.nodes():
            token_ids = tuple(token_id for step in node.path() for token_id in step.token_ids)
            own_prefixes = prefixes_of((node.namespace, token_ids))[-len(node.block_ids) :] if node.block_ids else []
            if len(token_ids) % BLOCK_SIZE:
                own_prefixes = [(node.namespace, token_ids)]
            found.update(zip(own_prefixes, node.block_ids, strict=True))
        assert found == self.block_of

    @invariant()
    def a_held_node_stands_for_its_prefix(self) -> None:
        for held in self.held:
            path = held.node.path()
            assert tuple(token_id for node in path for token_id in node.token_ids) == held.prefix[1]

    @invariant()
    def counts_are_those_of_the_model(self) -> None:
        assert self.tree.num_blocks == len(self.block_of)
        assert self.tree.num_evictable_blocks == sum(not self.is_locked(prefix) for prefix in self.block_of)
        used = {namespace for namespace, _ in self.block_of} | {held.prefix[0] for held in self.held}
        assert set(self.tree.namespaces) == used


TestTreeAgainstDictionary = TreeAgainstDictionary.TestCase
TestTreeAgainstDictionary.settings = settings(max_examples=500, stateful_step_count=30, deadline=None)
