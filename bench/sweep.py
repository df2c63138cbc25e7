"""`bench run -m`: every combination of the values given, through Hydra's sweeper and launcher."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from bench import config, plugins, schema
from bench.cli import run_request
from bench.errors import RequestError


def run_sweep(overrides: Sequence[str]) -> int:
    """Run the cells one after the other; one that fails doesn't stop the rest. Returns 2 when a
    request was wrong, 1 when a run failed, else 0."""
    import hydra
    from hydra.core.hydra_config import HydraConfig

    codes: list[int] = []

    def one(composed: Any) -> int:
        words = list(HydraConfig.get().overrides.task)
        print(f"\n[{len(codes) + 1}] {' '.join(words)}", flush=True)
        try:
            codes.append(run_request(config.plain(composed), f"bench run {' '.join(words)}"))
        except RequestError as error:
            print(f"bench: {error}", file=sys.stderr)
            codes.append(2)
        return codes[-1]

    schema.register()
    sys.argv = ["bench", "-m", *config.checked(overrides)]
    hydra.main(version_base="1.3", config_path=str(plugins.ROOT / "conf"), config_name="config")(
        one
    )()
    failed = sum(code != 0 for code in codes)
    print(f"\n{len(codes)} cells: {len(codes) - failed} done, {failed} failed")
    return max(codes, default=0)
