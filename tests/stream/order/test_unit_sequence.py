"""The shared sequence of units, against its definition: every (unit, copy) once per epoch, dealt to lanes in turn."""

from __future__ import annotations

import pickle
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pilekit.stream.order.unit_sequence import Sequence

sequences = st.builds(
    Sequence,
    documents=st.integers(1, 60),
    unit=st.integers(1, 9),
    copies=st.integers(1, 3),
    seed=st.integers(0, 3),
    lanes=st.integers(1, 12),
    shuffle=st.booleans(),
)


@given(sequences)
def test_every_epoch_holds_each_document_once_per_copy(sequence: Sequence) -> None:
    for epoch in range(3):
        uses: Counter[tuple[int, int]] = Counter()
        for position in range(epoch * sequence.per_epoch, (epoch + 1) * sequence.per_epoch):
            unit = sequence.at(position)
            assert unit.epoch == epoch
            order = sequence.order(unit).tolist()
            assert sorted(order) == list(range(unit.end - unit.begin))
            uses.update((unit.begin + index, unit.copy) for index in order)
        assert uses == {(d, copy): 1 for d in range(sequence.documents) for copy in range(sequence.copies)}


@given(sequences)
def test_the_order_of_asking_changes_nothing(sequence: Sequence) -> None:
    """Lanes can be in different epochs, and only two permutations are in memory."""
    positions = range(5 * sequence.per_epoch)
    forward = [sequence.at(position) for position in positions]
    assert [sequence.at(position) for position in reversed(positions)] == forward[::-1]
    assert [pickle.loads(pickle.dumps(sequence)).at(position) for position in positions] == forward


def test_epochs_copies_and_seeds_have_orders_of_their_own() -> None:
    sequence = Sequence(documents=1000, unit=20, copies=2, seed=0, lanes=4)
    epochs = [tuple(sequence.at(p)[1:3] for p in range(e * 100, e * 100 + 100)) for e in range(4)]
    other = Sequence(documents=1000, unit=20, copies=2, seed=1, lanes=4)
    epochs.append(tuple(other.at(p)[1:3] for p in range(100)))
    assert len(set(epochs)) == 5
    inside = {tuple(sequence.order(sequence.at(p)).tolist()) for p in range(200) if sequence.at(p).unit == 7}
    assert len(inside) == 4, "two epochs of two copies"


def test_without_shuffling_units_come_copy_after_copy() -> None:
    sequence = Sequence(documents=7, unit=3, copies=2, seed=0, lanes=1, shuffle=False)
    assert [tuple(sequence.at(p)) for p in range(7)] == [
        (0, 0, 0, 0, 3),
        (0, 1, 0, 3, 6),
        (0, 2, 0, 6, 7),
        (0, 0, 1, 0, 3),
        (0, 1, 1, 3, 6),
        (0, 2, 1, 6, 7),
        (1, 0, 0, 0, 3),
    ]
    assert sequence.order(sequence.at(1)).tolist() == [0, 1, 2]
