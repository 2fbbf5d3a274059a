"""The user's own configuration files, checked before Hydra reads them: what is wrong, in which file and line.

Hydra and OmegaConf do not handle errors of the YAML parser, and expand aliases before the result can be checked. So a
file of some lines may take all memory. `check_config_files` inserts a check before Hydra's reader of files. It checks
all files that a command line leads to, and no others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from hydra._internal.core_plugins import file_config_source, importlib_resources_config_source
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from quantpipe.app.compose import HARDWARE, whole_hardware
from quantpipe.app.files import folder_of
from quantpipe.app.own_package import check_own_package
from quantpipe.errors import ConfigError
from quantpipe.hardware.like import LIKE

MOST_BYTES = 4 << 20
MOST_VALUES = 100_000
"""Values of one file with all aliases written out; the longest file that comes with the package has under 1000."""
MOST_DEPTH = 50


def check_config_files() -> None:
    """Insert the check before Hydra's reader of files.

    The readers have the names of Hydra's own. The process of a launcher gets the registry and scans for Hydra's own
    once more. By the same name that one gives way to the existing reader; under any other name it would be an error.
    """
    Plugins.instance()  # its scan would put Hydra's own reader in the place of ours
    for source in (FileConfigSource, ImportlibResourcesConfigSource):
        SourcesRegistry.instance().types[source.scheme()] = source


class FileConfigSource(file_config_source.FileConfigSource):
    """Read files as Hydra does, after the check."""

    def load_config(self, config_path: str) -> ConfigResult:
        """Return a file's content; ConfigError for one that is no mapping, or too large."""
        file = Path(self.path) / self._normalize_file_name(config_path)
        if file.is_file():
            check_file(file)
        try:
            result = super().load_config(config_path)
            if not self._is_shipped(config_path):
                check_own_package(result.config, result.header, config_path, file)
            return _whole(result, config_path, file.parent)
        except yaml.YAMLError as error:  # what libyaml takes and PyYAML does not
            raise _refused(file, _problem(error)) from error
        except (ValueError, OmegaConfBaseException) as error:  # a header line such as "# @package", a word as a key
            raise _refused(file, " ".join(str(error).split())[:300]) from error

    def _is_shipped(self, config_path: str) -> bool:
        """Whether it is conf/config.yaml of the program, which sets Hydra up."""
        return "/" not in config_path.strip("/") and Path(self.path).resolve() == folder_of("conf").resolve()


class ImportlibResourcesConfigSource(importlib_resources_config_source.ImportlibResourcesConfigSource):
    """Hydra's reader of files in packages (plug-ins)."""

    def load_config(self, config_path: str) -> ConfigResult:
        """Return a file's content."""
        return _whole(super().load_config(config_path), config_path, None)


def _whole(result: ConfigResult, config_path: str, folder: Path | None) -> ConfigResult:
    """Return a hardware file with the content of the one that it is like, so that overrides find every field."""
    group = config_path.strip("/").rpartition("/")[0]
    if group == HARDWARE and isinstance(result.config, DictConfig) and LIKE in result.config:
        content = OmegaConf.to_container(result.config, resolve=False)
        given = {str(key): value for key, value in content.items()} if isinstance(content, dict) else {}
        result.config = OmegaConf.create(whole_hardware(given, folder))
    return result


def check_file(path: Path) -> None:
    """Raise ConfigError when the file is no YAML mapping that can be read at once, naming line and column."""
    try:
        data = path.read_bytes()
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise _refused(path, f"line {line} is not UTF-8 (byte {data[error.start]:#04x})") from error
    except OSError as error:
        raise _refused(path, error.strerror or str(error)) from error
    if len(data) > MOST_BYTES:
        raise _refused(path, f"it has {len(data)} bytes; legal are {MOST_BYTES}")
    try:
        found = _parsed(text, path)
    except yaml.YAMLError as error:
        raise _refused(path, _problem(error)) from error
    except (ValueError, TypeError) as error:  # of a tag's constructor, such as !!int of a word
        raise _refused(path, " ".join(str(error).split())) from error
    if found is not None and not isinstance(found, dict):
        raise _refused(path, f"it holds a {type(found).__name__}; legal is a mapping of keys to values")


def _parsed(text: str, path: Path) -> Any:
    """Return the content of a file, by libyaml if available (several times faster); PyYAML words the errors."""
    if yaml.__with_libyaml__:
        try:
            _refuse_growth(text, path, yaml.CSafeLoader)
            return yaml.load(text, Loader=_FastLoader)
        except yaml.YAMLError:
            pass
    _refuse_growth(text, path, yaml.SafeLoader)
    return yaml.load(text, Loader=_Loader)


class _UniqueKeys:
    """Reject keys that are given twice, as OmegaConf does."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:merge" and isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"the key {key.value!r} twice", key.start_mark)
                seen.add((key.tag, key.value))
        found: dict[Any, Any] = super().construct_mapping(node, deep)  # type: ignore[misc]
        return found


class _Loader(_UniqueKeys, yaml.SafeLoader):
    """PyYAML's own."""


class _FastLoader(_UniqueKeys, yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):  # type: ignore[misc]
    """libyaml's, where PyYAML was built with it."""


def _refuse_growth(text: str, path: Path, loader: Any) -> None:
    """Reject a file that, aliases written out, is larger or deeper than any configuration, by ConfigError.

    The file is read once, in time and memory that follow from its own length.
    """
    values = 0
    sizes: dict[str, int] = {}
    open_nodes: list[tuple[str | None, int]] = []
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes and event.anchor in [anchor for anchor, _ in open_nodes]:
                raise _refused(path, f"{_place(event.start_mark)}: {event.anchor!r} holds itself")
            values += sizes.get(str(event.anchor), 1)  # an unknown one is refused when the values are made
        elif isinstance(event, yaml.ScalarEvent):
            values += 1
            if event.anchor:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, values))
            values += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            if anchor:
                sizes[anchor] = values - before
        if len(open_nodes) > MOST_DEPTH:
            raise _refused(path, f"{_place(event.start_mark)}: values lie more than {MOST_DEPTH} deep")
        if values > MOST_VALUES:
            raise _refused(path, f"{_place(event.start_mark)}: more than {MOST_VALUES} values, aliases counted")


def _problem(error: yaml.YAMLError) -> str:
    """Return place and problem, without the lines of the file."""
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        what = error.problem or error.context or "no YAML"
        hint = "; YAML indents by spaces" if "'\\t'" in what else ""
        return f"{_place(mark)}: {what}{hint}" if mark is not None else what
    return " ".join(str(error).split())[:300]


def _place(mark: Any) -> str:
    """Return the place of a mark of the parser, of either of PyYAML's two classes."""
    return f"line {mark.line + 1}, column {mark.column + 1}"


def _refused(path: Path, what: str) -> ConfigError:
    return ConfigError(f"{what}. Legal is a YAML file (UTF-8 text) of keys and values", where=str(path))
