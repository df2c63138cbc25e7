"""The sweeper of `bench run -m`: it launches the cells that a plan leaves to do.

No `from __future__ import annotations` here: Hydra loads this file under no module's name, which
dataclasses would look for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


@dataclass
class BenchSweeperConf:
    """`params` are an experiment's sweeps: NAME: VALUE,VALUE."""

    _target_: str = "hydra_plugins.bench_sweeper.plugin.BenchSweeper"
    params: dict[str, Any] = field(default_factory=dict)


ConfigStore.instance().store(
    group="hydra/sweeper", name="bench", node=BenchSweeperConf, provider="bench"
)


class BenchSweeper(Sweeper):
    """Passes Hydra's launcher to bench.sweep.sweep, which knows the plan and starts its cells."""

    def __init__(self, params: Any = None) -> None:
        self.launcher: Launcher | None = None

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: Sequence[str]) -> None:
        from bench.sweep.sweep import launch_planned

        assert self.launcher is not None
        launch_planned(self.launcher)
