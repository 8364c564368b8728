"""Tables of runs: their columns by patterns, several files, and what is wrong with one."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pilekit.errors import PilekitError
from pilekit.mixtures.run_table import read_runs

GOOD = "run,weight.ArXiv,weight.Github,note,loss.Github\n1,0.25,0.75,a,1.5\n2,1,0,b,2\n"


def written(folder: Path, text: str, name: str = "runs.csv") -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_columns_of_weights_and_losses_are_found_by_their_names(tmp_path: Path) -> None:
    for paths in ([written(tmp_path, GOOD)], [tmp_path / "runs.parquet"]):
        if paths[0].suffix == ".parquet":
            pq.write_table(pa.csv.read_csv(tmp_path / "runs.csv"), paths[0])
        table = read_runs(paths)
        assert (table.subsets, table.evaluated) == (("ArXiv", "Github"), ("Github",))
        assert table.weights.tolist() == [[0.25, 0.75], [1.0, 0.0]]
        assert table.losses.tolist() == [[1.5], [2.0]]


def test_weights_of_a_rounded_table_are_scaled_to_the_sum_1(tmp_path: Path) -> None:
    table = read_runs([written(tmp_path, "weight.a,weight.b,loss.a\n0.333,0.666,1\n")])
    assert table.weights.sum(axis=1).tolist() == [1.0]


def test_several_files_are_joined_by_the_columns_that_they_share(tmp_path: Path) -> None:
    weights = written(tmp_path, "index,train_a,train_b\n7,0.5,0.5\n8,0.1,0.9\n", "weights.csv")
    losses = written(tmp_path, "index,metric/a_val_loss,metric/c_val_loss\n8,2,3\n7,4,5\n", "losses.csv")
    table = read_runs([weights, losses])
    assert (table.subsets, table.evaluated) == (("a", "b"), ("a", "c"))
    assert table.losses.tolist() == [[4.0, 5.0], [2.0, 3.0]]


def test_other_names_are_given_by_patterns(tmp_path: Path) -> None:
    path = written(tmp_path, "w(a),w(b),bpb of a\n0.5,0.5,1\n")
    table = read_runs([path], "w(*)", "bpb of *")
    assert (table.subsets, table.evaluated) == (("a", "b"), ("a",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "lacks columns weight.* of two subsets or more and loss.*;"),
        ("weight.a,loss.a\n1,2\n", "lacks columns weight.* of two subsets"),
        ("weight.a,weight.b,loss.a\n", "runs.csv: is no table of runs: it has no rows"),
        ("weight.a,weight.a,loss.a\n.5,.5,1\n", "two columns are called weight.a"),
        (GOOD + "3,25,75,c,1\n", "runs.csv: the weights of row 3 sum to 100, not to 1"),
        (GOOD + "3,-0.5,1.5,c,1\n", "row 3, column weight.ArXiv: -0.5 is a negative weight"),
        (GOOD + "3,0.5,0.5,c,0\n", "row 3, column loss.Github: 0 is no loss"),
        (GOOD + "3,0.5,0.5,c,\n", "row 3, column loss.Github: nothing is no number"),
        (GOOD + "3,0.5,0.5,c,inf\n", "row 3, column loss.Github: inf is no number"),
        (GOOD + "3,0.5,0.5,c,bad\n", "runs.csv: column loss.Github: "),
        (GOOD + "3,0.5\n", "runs.csv: cannot be read as a table of runs: "),
    ],
)
def test_what_is_wrong_with_a_table_is_named(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(PilekitError, match=re.escape(message)) as error:
        read_runs([written(tmp_path, text)])
    assert "\n" not in str(error.value)


def test_files_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    weights = written(tmp_path, "index,weight.a,weight.b\n1,0.5,0.5\n2,0.1,0.9\n", "weights.csv")
    for text, message in (
        ("index,loss.a\n1,2\n", "index 2 must be in each file once"),
        ("index,loss.a\n1,2\n1,2\n2,2\n", "index 1 must be in each file once"),
        ("loss.a\n1\n2\n", "have no column in common"),
    ):
        with pytest.raises(PilekitError, match=message):
            read_runs([weights, written(tmp_path, text, "losses.csv")])
    for path, message in ((tmp_path / "no.csv", "No such file"), (tmp_path / "runs.txt", "give a .csv or .parquet")):
        with pytest.raises(PilekitError, match=message):
            read_runs([path if path.suffix == ".csv" else written(tmp_path, GOOD, "runs.txt")])
    with pytest.raises(PilekitError, match="is no pattern; write"):
        read_runs([written(tmp_path, GOOD)], "weight.")
