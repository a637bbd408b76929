"""Runs the days of a simulation one after the other, and records each; an interrupted one resumes."""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from app.client.sage_client import SageClient
from app.errors import InvalidError
from trainer.atomic_write import write_atomically
from trainer.worlds.simulate_live.simulation_plan import SimulationPlan
from trainer.worlds.simulate_live.town import Day, Services, Town


class SimulationState(msgspec.Struct, kw_only=True):
    """What is in the directory: the plan, each arm's project, and the days so far."""

    plan: SimulationPlan
    projects: dict[str, str] = {}
    days: list[Day] = []


class Simulation:
    """One plan with some of its arms, in one directory."""

    def __init__(self, plan: SimulationPlan, arms: Sequence[str], work: Path) -> None:
        """Raises InvalidError where the directory has another plan."""
        self._path = work / "simulation.json"
        self.state = SimulationState(plan=plan)
        if self._path.exists():
            self.state = msgspec.json.decode(self._path.read_bytes(), type=SimulationState)
        if self.state.plan != plan:
            raise InvalidError(f"{work} has a simulation with other settings: use these, or another --work")
        self._plan, self._arms = plan, arms

    def run(
        self,
        server: SageClient,
        services: Services,
        teach: Callable[[str], object],
        report: Callable[[Day], object],
    ) -> None:
        """Run the days that are left. `teach` prepares a project's policy; `report` is called with each day."""
        towns = [self._town(server, services, arm, teach) for arm in self._arms]
        for day in range(1, self._plan.days + 1):
            left = [town for town in towns if not self._is_done(town.name, day)]
            for town in left:
                town.end_trials([each for each in self.state.days if each.arm == town.name])
            accepted = [town.begin(day) for town in left]
            for town, tasks in zip(left, accepted, strict=True):
                done = town.end(day, tasks)
                self.state.days.append(done)
                self._save()
                report(done)

    def _town(self, server: SageClient, services: Services, arm: str, teach: Callable[[str], object]) -> Town:
        project = self.state.projects.get(arm)
        if project is not None:
            return Town(server, services, self._plan, arm, project)
        town = Town.open(server, services, self._plan, arm, teach)
        self.state.projects[arm] = town.project
        self._save()
        return town

    def _is_done(self, arm: str, day: int) -> bool:
        return any((each.arm, each.day) == (arm, day) for each in self.state.days)

    def _save(self) -> None:
        write_atomically(msgspec.json.encode(self.state), self._path)
