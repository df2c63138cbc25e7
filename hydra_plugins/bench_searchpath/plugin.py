"""Adds the conf folders of plugin packages to Hydra's search path, importing none of them."""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

from bench.request.plugins import conf_dirs


class BenchSearchPath(SearchPathPlugin):
    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in conf_dirs()[1:]:
            search_path.append(provider="bench", path=f"file://{folder}")
