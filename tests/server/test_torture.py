"""Killed servers break no promise: a short torture run. And the checks of the torture detect broken promises."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.server.torture import Kill, Torture
from tests.server.torture_model import Hits, Model, Question, Write, check_near, ids_of, make_question, match_writes
from tests.storage.item_checks import BrokenPromiseError

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds the processes in /proc")

KILLS = {
    1: [Kill("server", 0.1), Kill("server", 0.1, starting=True), Kill("server", 0.3)],
    3: [Kill("writer", 0.1), Kill("reader", 0.1), Kill("server", 0.2)],
}


@pytest.mark.parametrize("workers", KILLS)
def test_killed_servers_lose_nothing(workers: int, tmp_path: Path) -> None:
    summary = Torture(tmp_path, workers, seed=workers).run(KILLS[workers])
    assert summary.problems == []
    assert summary.kills.total() == len(KILLS[workers])
    assert summary.acknowledged > 0
    assert summary.counts["searches"] > 0
    assert summary.verified > 0


class Forgetful(Torture):
    """Puts the files of the first kill back after the second one."""

    def _check_files(self) -> None:
        if not (kept := self.path.with_name("kept")).exists():
            shutil.copytree(self.path, kept)
        else:
            shutil.rmtree(self.path)
            shutil.copytree(kept, self.path)
        super()._check_files()


def test_lost_writes_are_detected(tmp_path: Path) -> None:
    summary = Forgetful(tmp_path, 1, seed=0).run([Kill("server", 0.1), Kill("server", 0.3)])
    assert len(summary.problems) == 1
    assert "do not explain the contents" in summary.problems[0]


# -- the checks --------------------------------------------------------------------------------------------------------


@pytest.fixture
def model() -> Model:
    model = Model(2)
    model.apply(ids_of(2)[:100], 7)
    return model


def test_unfinished_writes_may_be_there_message_by_message(model: Model) -> None:
    large = Write(30, ids_of(2)[:70], False)
    first, *_, last = large.steps()
    after = Model(2)
    after.versions = model.versions.copy()
    after.apply(first, 30)
    assert match_writes(model, after.versions.copy(), [large]) == 1
    after.apply(last[:-1], 30)
    with pytest.raises(BrokenPromiseError, match="do not explain"):
        match_writes(model, after.versions, [large])


def test_a_lost_write_is_detected(model: Model) -> None:
    found = model.versions.copy()
    found[3] = 6
    with pytest.raises(BrokenPromiseError, match="do not explain"):
        match_writes(model, found, [Write(8, ids_of(2)[50:60], False)])
    with pytest.raises(BrokenPromiseError, match="1 items are wrong"):
        model.check(found, "by get")


def hits_of(model: Model, question: Question, states: list[int]) -> Hits:
    """Return the hits of a search that sees the first third of the states' answers, and so on."""
    after = Model(2)
    after.versions = model.versions.copy()
    after.apply(ids_of(2)[40:160], 9)
    versions = [model.versions, after.versions]
    hits = Hits(question, 2, versions, [], [], [])
    last = (-1, 0)
    for number, state in enumerate(states):
        items = Model(2)
        items.versions = versions[state]
        rest = [hit for hit in question.positions(*items.items) if hit > last]
        for far, id_ in rest if number == len(states) - 1 else rest[: len(rest) // 3]:
            last = far, id_
            hits.ids.append(id_)
            hits.versions.append(int(versions[state][id_ // 6]))
            hits.distances.append(float(far))
    return hits


STARTED = [9] * 6


def test_searches_may_change_to_a_newer_state_at_a_kill(model: Model) -> None:
    for seed in range(12):
        question = make_question(np.random.default_rng(seed))
        hits_of(model, question, [0]).check(STARTED, 0, ended=True)
        hits_of(model, question, [0, 1]).check(STARTED, 1, ended=True)
        hits_of(model, question, [1]).check(STARTED, 1, ended=True)
        for states, kills in (([0, 1], 0), ([1], 0), ([1, 0], 1), ([0, 1, 0], 2)):
            with pytest.raises(BrokenPromiseError):
                hits_of(model, question, states).check(STARTED, kills, ended=True)


def test_wrong_hits_are_detected(model: Model) -> None:
    question = make_question(np.random.default_rng(3))
    sound = hits_of(model, question, [0])
    for change in (
        {"ids": sound.ids[:-1], "versions": sound.versions[:-1], "distances": sound.distances[:-1]},
        {"ids": sound.ids[1:], "versions": sound.versions[1:], "distances": sound.distances[1:]},
        {"distances": [2 * sound.distances[0] + 1, *sound.distances[1:]]},
        {"versions": [10, *sound.versions[1:]]},
        {"ids": sound.ids[::-1], "versions": sound.versions[::-1], "distances": sound.distances[::-1]},
    ):
        with pytest.raises(BrokenPromiseError):
            replace(sound, **change).check(STARTED, 0, ended=True)
    part = replace(sound, ids=sound.ids[:5], versions=sound.versions[:5], distances=sound.distances[:5])
    part.check(STARTED, 0, ended=False)


def test_a_missing_hit_of_a_complete_answer_is_detected(model: Model) -> None:
    question = make_question(np.random.default_rng(1), exact=True)
    near = question.positions(*model.items)[:20]
    ids = np.array([id_ for _, id_ in near], dtype=np.uint64)
    distances = np.array([float(far) for far, _ in near])
    check_near(model, question, 20, ids, distances, (-1, 0))
    with pytest.raises(BrokenPromiseError, match="own hits"):
        check_near(model, question, 19, np.delete(ids, 7), np.delete(distances, 7), (-1, 0))
