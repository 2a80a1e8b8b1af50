"""Groups: jobs that run together, and the estimates that determine the size of a group."""

from __future__ import annotations

import math
import threading

import pytest

from tests.server import scheduler_bench
from tests.server.scheduler_bench import SLICE, Outcome, SchedulerBench, Task, busy
from whamming.server.search.scheduler import (
    GROUP_SLICES,
    LONE_SLICES,
    MAX_ESTIMATES,
    MAX_OPEN,
    MAX_TOGETHER,
    Flow,
    ThroughputEstimate,
)

single = scheduler_bench.single
manual = scheduler_bench.manual


def test_the_first_job_of_a_group_runs_alone(manual: SchedulerBench) -> None:
    flow = Flow()
    manual.submit(*(Task(flow, group="g", name=f"{place}") for place in range(MAX_TOGETHER)))
    assert manual.step() == ["0"], "its time is not known yet"
    count = len(manual.step())
    assert 1 < count <= 8


def test_the_size_of_a_group_fits_the_time(manual: SchedulerBench) -> None:
    manual.learn("g", seconds=0.01)
    flow = Flow()
    manual.submit(*(Task(flow, group="g") for _ in range(30)))
    assert len(manual.step(0.055)) == 5
    manual.scheduler._estimates["g"].add(0.01 * MAX_TOGETHER, MAX_TOGETHER)
    assert len(manual.step(0.001)) == 1
    manual.scheduler._estimates["g"].add(1e-6 * MAX_TOGETHER, MAX_TOGETHER)
    assert len(manual.step(1.0)) == 24
    assert manual.step() == []


def test_the_size_of_a_group_is_limited(manual: SchedulerBench) -> None:
    manual.learn("g")
    flow = Flow()
    manual.submit(*(Task(flow, group="g") for _ in range(2 * MAX_TOGETHER)))
    assert len(manual.step()) == MAX_TOGETHER


def test_a_group_gathers_jobs_of_several_flows_in_fair_order(manual: SchedulerBench) -> None:
    manual.learn("g")
    flows = {name: Flow() for name in "abc"}
    counts = {"a": 3, "b": 2 * MAX_TOGETHER, "c": 2}
    for name, used in zip("abc", (3.0, 1.0, 2.0), strict=True):
        flows[name].client.used = used
        tasks = [Task(flows[name], group="g", name=f"{name}{place}") for place in range(counts[name])]
        manual.scheduler.submit(flows[name], tasks)
    ran = manual.step()
    own = MAX_TOGETHER - 5
    assert ran == [*(f"b{place}" for place in range(own)), "c0", "c1", "a0", "a1", "a2"]
    rest = manual.step() + manual.step()
    assert rest == [f"b{place}" for place in range(own, counts["b"])]


def test_flows_with_long_queues_take_turns(manual: SchedulerBench) -> None:
    """A group of each one's jobs gives one large answer; a mixed one would give two small ones."""
    manual.learn("g", 1e-3)
    flows = [Flow(), Flow()]
    for flow in flows:
        manual.scheduler.submit(flow, [Task(flow, group="g") for _ in range(4 * MAX_TOGETHER)])
    turns = []
    while any(flow.fresh for flow in flows):
        waiting = [len(flow.fresh) for flow in flows]
        manual.step()
        turns.append([before - len(flow.fresh) for before, flow in zip(waiting, flows, strict=True)])
    assert all(0 in turn for turn in turns)
    assert [sum(taken) for taken in zip(*turns, strict=True)] == [4 * MAX_TOGETHER] * 2
    assert turns[0].index(0) != turns[1].index(0), "the other flow is next"


def test_a_group_takes_only_jobs_that_are_next_in_their_flow(manual: SchedulerBench) -> None:
    manual.learn("g")
    first, second, third = Flow(), Flow(), Flow()
    kinds = [("g", "g1"), ("other", "o"), ("g", "g2")]
    manual.scheduler.submit(first, [Task(first, group=group, name=name) for group, name in kinds])
    manual.scheduler.submit(second, [Task(second, name="alone"), Task(second, group="g", name="g3")])
    manual.scheduler.submit(third, [Task(third, group="g", name="g4")])
    assert manual.step() == ["g1", "g4"]
    rest = [manual.step() for _ in range(4)]
    assert sorted(name for names in rest for name in names) == ["alone", "g2", "g3", "o"]
    assert rest.index(["o"]) < next(place for place, names in enumerate(rest) if "g2" in names), "in the flow's order"
    assert manual.step() == []


def test_flows_of_a_group_share_the_time_it_took(manual: SchedulerBench) -> None:
    def work(_: float) -> Outcome:
        busy(0.001)
        return "done"

    manual.learn("g")
    flows = [Flow(), Flow()]
    for flow, count in zip(flows, (1, 3), strict=True):
        manual.scheduler.submit(flow, [Task(flow, work, group="g") for _ in range(count)])
    start = manual.scheduler._now
    assert len(manual.step()) == 4
    used = [flow.client.used - start for flow in flows]
    assert used[1] == pytest.approx(3 * used[0])
    assert used[0] >= 0.001


@pytest.mark.parametrize(("others", "slices"), [(0, LONE_SLICES), (1, GROUP_SLICES)])
def test_groups_are_smaller_if_other_flows_wait(single: SchedulerBench, others: int, slices: int) -> None:
    held, release = threading.Event(), threading.Event()

    def hold(_: float) -> Outcome:
        held.set()
        assert release.wait(20)
        return "done"

    single.scheduler._estimates["g"] = ThroughputEstimate()
    single.scheduler._estimates["g"].add(SLICE * MAX_TOGETHER, MAX_TOGETHER)
    single.submit(Task(Flow(), hold))
    assert held.wait(20)
    flow, other = Flow(), Flow()
    tasks = [Task(flow, group="g") for _ in range(20)]
    single.submit(*tasks)
    other.client.used = 1.0
    single.submit(*(Task(other) for _ in range(others)))
    release.set()
    for task in tasks:
        assert task.ended.wait(20)
    assert len(single.ran[1]) == slices


def test_jobs_of_a_group_do_not_count_as_open(manual: SchedulerBench) -> None:
    flow = Flow()
    manual.submit(*(Task(flow, group="g") for _ in range(3 * MAX_OPEN)))
    while manual.step():
        assert flow.open == 0


def test_the_number_of_estimates_is_limited(manual: SchedulerBench) -> None:
    for number in range(MAX_ESTIMATES + 10):
        task = Task(Flow(), group=number)
        manual.submit(task)
        while not task.ended.is_set():
            manual.step()
    assert len(manual.scheduler._estimates) <= MAX_ESTIMATES


# -- estimates ---------------------------------------------------------------------------------------------------------


def test_the_estimated_group_size_grows_step_by_step() -> None:
    estimate = ThroughputEstimate()
    assert estimate.seconds == math.inf
    assert estimate.count_in(1.0) == 1
    estimate.add(1e-6, 1)
    assert estimate.count_in(1.0) == 8
    estimate.add(8e-6, 8)
    assert estimate.count_in(1.0) == MAX_TOGETHER
    estimate.add(64.0, 64)
    assert estimate.count_in(3.5) == 3
    assert estimate.count_in(0.001) == 1


def test_jobs_that_took_no_measurable_time() -> None:
    """The clock may be too coarse to measure them."""
    estimate = ThroughputEstimate()
    estimate.add(0.0, 5)
    assert estimate.count_in(1.0) == 40
