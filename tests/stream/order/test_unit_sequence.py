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
