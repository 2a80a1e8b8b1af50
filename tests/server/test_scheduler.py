"""The fair queue: flows share the workers, no job runs twice at the same time, and every job finishes."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Sequence

import pytest

from tests.server import scheduler_bench
from tests.server.scheduler_bench import SLICE, Outcome, SchedulerBench, Task, busy, counted
from tests.serving import wait_until
from whamming.server.search.scheduler import MAX_OPEN, MAX_TOGETHER, ClientQueue, Flow, Scheduler, ThroughputEstimate

threaded = scheduler_bench.threaded
single = scheduler_bench.single
manual = scheduler_bench.manual


# -- one job at a time -------------------------------------------------------------------------------------------------


def test_all_jobs_finish(threaded: SchedulerBench) -> None:
    shared = Flow()
    tasks = [counted(Flow() if place < 25 else shared, 5) for place in range(50)]
    threaded.submit(*tasks)
    for task in tasks:
        assert task.ended.wait(20)
        assert task.steps == 5


def test_a_slice_has_the_configured_length(single: SchedulerBench) -> None:
    told: list[float] = []

    def step(seconds: float) -> Outcome:
        told.append(seconds)
        return "done"

    task = Task(Flow(), step)
    single.submit(task)
    assert task.ended.wait(20)
    assert told == [SLICE]
    assert single.scheduler.threads == 1


def test_jobs_of_a_flow_take_turns(manual: SchedulerBench) -> None:
    flow = Flow()
    manual.submit(*(counted(flow, 4, name) for name in "abc"))
    order = [manual.step()[0] for _ in range(12)]
    assert manual.step() == []
    assert order[:5] == ["a", "a", "b", "a", "c"], "new and begun jobs take turns"
    assert sorted(order) == ["a"] * 4 + ["b"] * 4 + ["c"] * 4
    last = order[5:9]
    assert set(last) == {"a", "b", "c"}


def test_withdrawn_jobs_do_not_end_the_only_worker() -> None:
    """It also looks whether the next job is one for the event loop."""
    bench = SchedulerBench()
    scheduler = Scheduler(1, SLICE, bench._run, request_dispatch=lambda: None)
    started, proceed = threading.Event(), threading.Event()

    def step(seconds: float) -> Outcome:
        started.set()
        proceed.wait()
        return "done"

    cancelled, later = Flow(), Task(Flow())
    scheduler.submit(*_alone(Task(Flow(), step)))
    scheduler.dispatch()
    assert started.wait(20)
    scheduler.submit(cancelled, [Task(cancelled)])
    assert len(scheduler.withdraw(cancelled)) == 1
    proceed.set()
    wait_until(lambda: scheduler._idle == 1)
    scheduler.submit(*_alone(later))
    scheduler.dispatch()
    assert later.ended.wait(20)
    scheduler.close()


def _alone(task: Task) -> tuple[Flow, list[Task]]:
    return task.flow, [task]


def test_begun_jobs_do_not_wait_for_all_new_ones(manual: SchedulerBench) -> None:
    flow = Flow()
    manual.submit(*(counted(flow, 2, f"{place}") for place in range(40)))
    order = [manual.step()[0] for _ in range(80)]
    second = {name: [place for place, one in enumerate(order) if one == name][1] for name in set(order)}
    assert second["0"] == 1
    assert all(second[f"{place}"] < order.index("39") for place in range(35))


def test_a_flow_has_a_limited_number_of_open_jobs(manual: SchedulerBench) -> None:
    flow = Flow()
    finish = False
    tasks = [Task(flow, lambda _: "done" if finish else "again", name=f"{place}") for place in range(MAX_OPEN + 10)]
    manual.submit(*tasks)
    for _ in range(3 * MAX_OPEN):
        manual.step()
    assert flow.open == MAX_OPEN
    assert [task.steps > 0 for task in tasks] == [True] * MAX_OPEN + [False] * 10
    finish = True
    while manual.step():
        pass
    assert all(task.ended.is_set() for task in tasks)
    assert flow.open == 0


def test_jobs_that_wait_for_their_client_do_not_count_as_open(manual: SchedulerBench) -> None:
    flow = Flow()
    tasks = [Task(flow, lambda _: "blocked", name=f"{place}") for place in range(3 * MAX_OPEN)]
    last = Task(flow, name="last")
    manual.submit(*tasks, last)
    while manual.step():
        pass
    assert last.ended.is_set()
    assert flow.open == 0
    manual.resume(tasks[7])
    assert flow.open == 1
    assert manual.step() == ["7"]
    assert tasks[7].steps == 2
    assert flow.open == 0


def test_jobs_that_wait_for_room_count_as_open(manual: SchedulerBench) -> None:
    """They hold memory, so a flow at its limit begins no new job until one of them ends."""
    flow = Flow()
    finish = False
    tasks = [Task(flow, lambda _: "done" if finish else "again") for _ in range(MAX_OPEN)]
    manual.submit(*tasks)
    for _ in range(2 * MAX_OPEN):
        manual.step()
    assert flow.open == MAX_OPEN
    flow.begun.clear()  # all of them are blocked
    manual.submit(Task(flow, name="fresh"))
    assert manual.step() == []
    finish = True
    manual.scheduler.resume(tasks[0])
    assert manual.step() == [""]
    assert manual.step() == ["fresh"]


def test_a_blocked_job_runs_only_after_it_is_resumed(single: SchedulerBench) -> None:
    waits = threading.Event()

    def step(_: float) -> Outcome:
        if task.steps > 1:
            return "done"
        waits.set()
        return "blocked"

    task = Task(Flow(), step)
    single.submit(task)
    assert waits.wait(20)
    other = counted(Flow(), 3)
    single.submit(other)
    assert other.ended.wait(20)
    assert task.steps == 1
    single.resume(task)
    assert task.ended.wait(20)


# -- fairness ----------------------------------------------------------------------------------------------------------


def test_the_flow_that_has_used_the_least_time_runs_next(manual: SchedulerBench) -> None:
    flows = {name: Flow() for name in "abcd"}
    manual.submit(*(counted(flow, 1000, name) for name, flow in flows.items()))
    for _ in range(200):
        used = {name: flow.client.used for name, flow in flows.items()}
        (name,) = manual.step()
        assert used[name] == min(used.values())


def test_flows_get_equal_time(single: SchedulerBench) -> None:
    """One flow has three jobs with long slices, the other one job with short slices. Each gets half of the time."""
    used = {"many": 0.0, "one": 0.0}
    stopped = threading.Event()

    def using(flow: Flow, name: str, seconds: float) -> Task:
        def step(_: float) -> Outcome:
            start = time.perf_counter()
            busy(seconds)
            used[name] += time.perf_counter() - start
            return "done" if stopped.is_set() else "again"

        return Task(flow, step)

    many = Flow()
    tasks = [using(many, "many", 0.004) for _ in range(3)] + [using(Flow(), "one", 0.0005)]
    single.submit(*tasks)
    wait_until(lambda: sum(used.values()) > 0.6)
    stopped.set()
    for task in tasks:
        assert task.ended.wait(20)
    assert used["many"] == pytest.approx(used["one"], rel=0.25, abs=0.06)
    assert tasks[-1].steps > tasks[0].steps


def test_an_endless_job_does_not_delay_short_ones(manual: SchedulerBench) -> None:
    """A short job that is submitted while an endless one runs comes next, every time."""

    def endless(_: float) -> Outcome:
        manual.scheduler.submit(flow := Flow(), [Task(flow, name="short")])
        busy(0.0002)
        return "again"

    flow = Flow()
    manual.submit(Task(flow, endless, name="endless"))
    order = [manual.step()[0] for _ in range(200)]
    assert order == ["endless", "short"] * 100


def test_a_new_flow_waits_for_one_slice_of_each_other_flow_at_most(manual: SchedulerBench) -> None:
    def endless(_: float) -> Outcome:
        busy(0.0001)
        return "again"

    flows = [Flow() for _ in range(10)]
    manual.submit(*(Task(flow, endless, name=f"{number}") for number, flow in enumerate(flows)))
    seen: set[str] = set()
    for _ in range(15):
        for _ in range(50):
            seen.update(manual.step())
        manual.scheduler.submit(flow := Flow(), [Task(flow, name="new")])
        waited: list[str] = []
        while (name := manual.step()[0]) != "new":
            waited.append(name)
        assert len(set(waited)) == len(waited)
    assert seen == {f"{number}" for number in range(10)}


def test_clients_get_equal_time_however_many_flows_they_have(manual: SchedulerBench) -> None:
    """A client with 300 flows, and one with a single flow, take turns."""

    def work(_: float) -> Outcome:
        busy(0.0001)
        return "again"

    crowd = ClientQueue()
    manual.submit(*(Task(Flow(crowd), work, name=f"{number}") for number in range(300)))
    for _ in range(350):
        manual.step()
    single = Flow()
    manual.submit(Task(single, work, name="single"))
    served = set()
    for _ in range(600):
        behind = "single" if single.client.used < crowd.used else "crowd"
        (name,) = manual.step()
        served.add(name)
        assert (name == "single") == (behind == "single")
    assert len(served) > 2, "the flows of a client take turns"


def test_a_group_has_jobs_of_all_clients(manual: SchedulerBench) -> None:
    """Clients with few calls do not wait until a client with many calls has filled several groups."""
    manual.learn("g")
    crowd = ClientQueue()
    for number in range(300):
        flow = Flow(crowd)
        manual.scheduler.submit(flow, [Task(flow, group="g", name=f"crowd {number}")])
    for name in "ab":
        flow = Flow()
        manual.scheduler.submit(flow, [Task(flow, group="g", name=name)])
    ran = manual.step()
    assert len(ran) == MAX_TOGETHER
    assert {"a", "b"} < set(ran)


def test_an_idle_flow_saves_no_time(manual: SchedulerBench) -> None:
    """A flow that returns after a pause starts level with the running flow, not ahead of it."""
    idle, working = Flow(), Flow()
    manual.submit(Task(idle))
    manual.step()

    def work(_: float) -> Outcome:
        busy(0.0005)
        return "again"

    manual.submit(Task(working, work))
    for _ in range(20):
        manual.step()
    start = manual.scheduler._now
    assert start > 0.005
    manual.scheduler.submit(idle, [Task(idle)])
    assert idle.client.used == start <= working.client.used


def test_a_new_flow_starts_at_the_current_time(manual: SchedulerBench) -> None:
    def work(_: float) -> Outcome:
        busy(0.0002)
        return "again"

    old = [Flow() for _ in range(3)]
    manual.submit(*(Task(flow, work) for flow in old))
    for _ in range(30):
        manual.step()
    flow = Flow()
    manual.scheduler.submit(flow, [Task(flow)])
    assert min(one.client.used for one in old) - 0.01 <= flow.client.used == manual.scheduler._now
    assert flow.client.used <= max(one.client.used for one in old)


# -- errors, stress, closing -------------------------------------------------------------------------------------------


def test_a_job_that_raises_is_dropped(threaded: SchedulerBench, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: float) -> Outcome:
        raise ArithmeticError("broken job")

    flow = Flow()
    with caplog.at_level(logging.ERROR, "whamming.server"):
        threaded.submit(*(Task(flow, fail) for _ in range(1 + threaded.scheduler.threads)))
        after = counted(flow, 2)
        threaded.submit(after)
        assert after.ended.wait(20)
    assert "broken job" in caplog.text


def test_all_jobs_finish_under_stress() -> None:
    """Jobs block at random and are resumed by other threads, with groups in between. All of them finish."""
    bench = SchedulerBench(4)
    chance = random.Random(0)
    waiting: list[Task] = []
    over = threading.Event()

    def pausing(flow: Flow) -> Task:
        left = chance.randrange(1, 40)

        def step(_: float) -> Outcome:
            if task.steps >= left:
                return "done"
            return chance.choice(["again", "blocked"])

        task = Task(flow, step)
        return task

    def run(tasks: Sequence[Task], seconds: float) -> Sequence[Task]:
        again = []
        for task in tasks:
            outcome = task.run(seconds)
            if outcome == "again":
                again.append(task)
            elif task.group is None:
                bench.scheduler.count_open(task.flow, -1)
            if outcome == "done":
                task.ended.set()
            elif outcome == "blocked":
                waiting.append(task)
        return again

    bench.scheduler._run = run

    def resume() -> None:
        while not over.is_set():
            try:
                task = waiting.pop()
            except IndexError:
                over.wait(0.0001)
                continue
            bench.resume(task)

    helpers = [threading.Thread(target=resume) for _ in range(3)]
    for helper in helpers:
        helper.start()
    flows = [Flow() for _ in range(20)]
    tasks = [pausing(flow) for flow in flows for _ in range(20)]
    tasks += [Task(flow, group=group) for flow in flows for group in ("x", "y", "x") for _ in range(5)]
    bench.submit(*tasks)
    try:
        for task in tasks:
            assert task.ended.wait(20)
    finally:
        over.set()
        for helper in helpers:
            helper.join()
        bench.scheduler.close()
    assert not any(flow.fresh or flow.begun for flow in flows)
    assert [flow.open for flow in flows] == [0] * 20
    assert bench.scheduler._busy == 0


def test_closing_stops_the_workers_between_slices() -> None:
    before = threading.active_count()
    bench = SchedulerBench(3)

    def endless(seconds: float) -> Outcome:
        busy(seconds)
        return "again"

    bench.submit(*(Task(Flow(), endless) for _ in range(5)))
    bench.scheduler.close()
    assert threading.active_count() == before
    runs = len(bench.ran)
    bench.scheduler._estimates["g"] = ThroughputEstimate()
    bench.scheduler._estimates["g"].add(1e-6, 1)
    bench.submit(Task(Flow(), group="g"))
    assert len(bench.ran) == runs, "nothing runs after closing, not even inline"
    bench.scheduler.close()


def test_a_worker_frees_finished_jobs(single: SchedulerBench) -> None:
    """A job holds a snapshot, which must be freed with the job."""
    gone = threading.Event()

    class Mortal(Task):
        def __del__(self) -> None:
            gone.set()

    ran = single.ran

    class Forgetful(list[list[Task]]):
        def append(self, tasks: list[Task]) -> None:
            pass

    single.ran = Forgetful()
    single.submit(Mortal(Flow()))
    assert gone.wait(20)
    assert ran == []
