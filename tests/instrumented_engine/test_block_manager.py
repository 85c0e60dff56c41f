from hypothesis import given, settings
from hypothesis import strategies as st

from instrumented_engine.core.block_manager import BlockManager, hash_block


def owned(manager, num_tokens):
    table: list[int] = []
    assert manager.allocate(table, num_tokens)
    return table


def test_growing_is_all_or_nothing():
    manager = BlockManager(3, 4)
    mine = owned(manager, 5)
    assert (len(mine), manager.num_used_blocks) == (2, 2)
    assert manager.allocate(mine, 8), "eight tokens fit the two blocks"
    assert not manager.allocate(mine, 13), "four blocks do not exist"
    assert (len(mine), manager.num_used_blocks) == (2, 2)
    assert manager.free(mine) == 2
    assert (mine, manager.num_used_blocks) == ([], 0)


def test_a_reserve_is_left_free():
    manager = BlockManager(3, 4)
    mine: list[int] = []
    assert not manager.allocate(mine, 8, reserve=2)
    assert manager.allocate(mine, 8, reserve=1)
    assert manager.allocate(mine, 8, reserve=2), "an allocation without blocks needs no reserve"


def test_a_shared_block_is_free_when_its_last_owner_gives_it_up():
    manager = BlockManager(4, 4)
    first, second = owned(manager, 8), []
    manager.share(second, first[:1])
    assert manager.allocate(second, 8)
    assert manager.num_used_blocks == 3
    assert manager.free(first) == 1, "the other block has another owner"
    assert manager.free(second) == 2
    assert manager.num_used_blocks == 0


def chain(*texts):
    hashes = []
    for text in texts:
        hashes.append(hash_block(hashes[-1] if hashes else b"", [ord(c) for c in text]))
    return hashes


def test_a_hash_covers_the_tokens_before_its_block():
    assert chain("ab", "cd") == chain("ab", "cd")
    assert chain("ab", "cd")[1] != chain("xb", "cd")[1]
    assert chain("ab")[0] != chain("ba")[0]
    assert hash_block(b"", [1 << 40]) != hash_block(b"", [0])


def test_contents_are_found_until_the_block_is_needed():
    manager = BlockManager(3, 2)
    mine = owned(manager, 4)
    hashes = chain("ab", "cd")
    for block, block_hash in zip(mine, hashes, strict=True):
        manager.publish(block, block_hash)
    blocks = list(mine)
    assert manager.find(chain("ab", "cd", "ef")) == blocks
    assert manager.find(chain("ab", "xx")) == blocks[:1]
    assert manager.find(chain("xx", "cd")) == []
    manager.free(mine)
    assert (manager.num_used_blocks, manager.find(hashes)) == (0, blocks)
    other = owned(manager, 2)
    assert (other[0] not in blocks, manager.num_dropped_blocks) == (True, 0), "the block without contents goes first"
    last = owned(manager, 2)
    assert (last, manager.num_dropped_blocks) == (blocks[1:], 1), "the end of a text goes before its start"
    assert manager.find(hashes) == blocks[:1]


def test_shared_contents_become_recently_used():
    manager = BlockManager(2, 2)
    old, new = owned(manager, 2), owned(manager, 2)
    manager.publish(old[0], b"old")
    manager.publish(new[0], b"new")
    manager.free(old)
    manager.free(new)
    again: list[int] = []
    manager.share(again, manager.find([b"old"]))
    assert manager.num_used_blocks == 1
    manager.free(again)
    owned(manager, 2)
    assert (len(manager.find([b"old"])), manager.find([b"new"])) == (1, [])


def test_the_same_contents_are_cached_once():
    manager = BlockManager(3, 2)
    first, second = owned(manager, 2), owned(manager, 2)
    manager.publish(first[0], b"same")
    manager.publish(second[0], b"same")
    assert manager.find([b"same"]) == first
    manager.free(second)
    owned(manager, 4)
    assert (manager.find([b"same"]), manager.num_dropped_blocks) == (first, 0)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(1, 6))
@settings(max_examples=40)
def test_blocks_come_back_whatever_was_taken(lengths, size):
    manager = BlockManager(64, size)
    owners: list[list[int]] = [[] for _ in lengths]
    for owner, tokens in zip(owners, lengths, strict=True):
        manager.allocate(owner, tokens)
    for owner in owners:
        manager.free(owner)
    assert sorted(owned(manager, manager.capacity)) == list(range(64))
