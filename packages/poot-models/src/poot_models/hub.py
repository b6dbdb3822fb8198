"""Models by their id on the Hugging Face hub: which files of a repository are needed, and where they lie once fetched.

`ORG/REPO[@REVISION][:QUANTISATION]`. The package huggingface_hub (the extra `hub`) does the fetching, keeps its own
cache and reads its own settings. Only weights, configuration, tokenizer and template are fetched: no code, no pickle.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from poot_models.errors import (
    CheckpointError,
    CheckpointMissingError,
    HubAccessError,
    HubChoiceError,
    HubError,
    HubMissingError,
    HubUnavailableError,
)
from poot_models.hub_files import beside_weights, choose_gguf, is_pickle

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_ID = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})"
    r"(?:@(?P<revision>\w[\w./-]{0,199}))?(?::(?P<quantisation>\w[\w.-]{0,99}))?",
    re.ASCII,
)
_FILES = (".gguf", ".safetensors", ".bin", ".pt", ".pth", ".json")
_INSTALL = "pip install 'poot-models[hub]'"
_WEIGHTS, _INDEX, _CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"


@dataclass(frozen=True, slots=True)
class HubId:
    """A repository, its revision (branch, tag or commit; None: the default branch), and which GGUF file of it."""

    repo: str
    revision: str | None = None
    quantisation: str | None = None

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return self.repo + revision + (f":{self.quantisation}" if self.quantisation else "")


@dataclass(frozen=True, slots=True)
class Hub:
    """Where repositories are asked for and kept; None leaves it to huggingface_hub. `token` False sends none."""

    endpoint: str | None = None
    cache: Path | None = None
    token: bool | None = None


def parse_hub_id(text: str) -> HubId | None:
    """None where the text has not the form of an id, or names a file of a model."""
    found = _ID.fullmatch(text)
    if found is None or ".." in text or "--" in found["repo"] or found["repo"].lower().endswith(_FILES):
        return None
    return HubId(found["repo"], found["revision"], found["quantisation"])


HUGGING_FACE = Hub()


def local_model(model: str | Path, hub: Hub = HUGGING_FACE) -> Path:
    """A path as it is; an id of the hub, where nothing has that path, fetched.

    Raises HubError, and CheckpointMissingError for an empty text.
    """
    if model == "":  # which a Path takes for the current directory
        raise CheckpointMissingError("the model's path is empty: give a .gguf file or a safetensors directory")
    path = Path(model)
    try:
        exists = path.exists() or path.is_symlink()  # also a link that leads nowhere
    except (OSError, ValueError):  # its reader says what is wrong with it
        return path
    found = None if exists or not isinstance(model, str) else parse_hub_id(model)
    return path if found is None else fetch(found, hub)


def fetch(model: HubId, hub: Hub = HUGGING_FACE) -> Path:
    """A GGUF file, the first part of a split one, or a safetensors directory, in huggingface_hub's cache.

    What is there already is not fetched again. Without a network, what an earlier run fetched is taken. Progress is
    shown on stderr. Raises HubError, whose kin says whether the network, the access, the name or the choice is wrong,
    and CheckpointFormatError for an index of shards that is none.
    """
    try:
        import huggingface_hub  # noqa: F401
    except ImportError as error:
        raise HubUnavailableError(
            f"there is no path {str(model)!r}, and to fetch it as a hub id needs huggingface_hub: {_INSTALL}"
        ) from error
    try:
        files = _listed(model, hub)
    except HubUnavailableError as error:
        return _fetched_before(model, hub, error)
    if parts := _gguf_parts(model, files):
        return _download(model, hub, parts) / parts[0]
    weights = _WEIGHTS if _WEIGHTS in files else _INDEX
    wanted = [weights, *(file for file in files if beside_weights(file))]
    folder = _download(model, hub, wanted)
    if weights == _INDEX:
        shards = _shards(model, folder)
        if missing := [file for file in shards if file not in files]:
            raise HubChoiceError(f"{model} has no {missing[0]}, which its {_INDEX} names: its upload is not whole")
        _download(model, hub, [*wanted, *shards])
    return folder


def _shards(model: HubId, folder: Path) -> list[str]:
    """The files that a fetched index names. Raises CheckpointFormatError."""
    from poot_models.checkpoint.safetensors import read_index

    try:
        return sorted(set(read_index(folder).values()))
    except CheckpointError as error:
        raise type(error)(f"{model}: {error}") from error


def _gguf_parts(model: HubId, files: Sequence[str]) -> list[str]:
    """The GGUF file or files that are the model; none where the repository's folder is. Raises HubChoiceError."""
    directory = _CONFIG in files and (_WEIGHTS in files or _INDEX in files)
    if directory and model.quantisation is None:
        return []
    if any(file.endswith(".gguf") for file in files):
        return choose_gguf(str(model), files, model.quantisation)
    if directory:
        raise HubChoiceError(f"{model}: there are no GGUF files in it, so leave out :{model.quantisation}")
    if unread := next((file for file in files if is_pickle(file)), None):
        raise HubChoiceError(
            f"{model} has its weights only in pickles such as {unread}, which can run code when read, so they never "
            "are: look for a repository of the model in safetensors or GGUF"
        )
    raise HubChoiceError(f"{model} has neither {_WEIGHTS} with {_CONFIG} nor a GGUF file: it holds no model")


def _listed(model: HubId, hub: Hub) -> list[str]:
    with _hub_errors(model):
        info = _api(hub).model_info(model.repo, revision=model.revision)
    return [sibling.rfilename for sibling in info.siblings or ()]


def _api(hub: Hub) -> HfApi:
    from huggingface_hub import HfApi

    return HfApi(endpoint=hub.endpoint, token=hub.token)


def _download(model: HubId, hub: Hub, files: Sequence[str]) -> Path:
    """Fetch what is not there yet; the folder of the revision."""
    with _hub_errors(model):
        # These are patterns to the library.
        patterns = [glob.escape(file) for file in files]
        folder = Path(
            _api(hub).snapshot_download(
                model.repo, revision=model.revision, cache_dir=hub.cache, allow_patterns=patterns
            )
        )
    if missing := [file for file in files if not (folder / file).is_file()]:
        raise HubUnavailableError(f"{model}: {missing[0]} did not arrive; try again")
    return folder


def _fetched_before(model: HubId, hub: Hub, why: HubUnavailableError) -> Path:
    """The model as an earlier run left it in the cache. Raises `why` where that is not enough."""
    try:
        with _hub_errors(model):
            # No pattern: the folder, whatever is in it.
            found = _api(hub).snapshot_download(
                model.repo, revision=model.revision, cache_dir=hub.cache, allow_patterns=[], local_files_only=True
            )
        folder = Path(found)
        files = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
        parts = _gguf_parts(model, files)
    except HubError as error:
        raise HubUnavailableError(f"{why}; no earlier run has fetched it") from error
    return folder / parts[0] if parts else folder


@contextmanager
def _hub_errors(model: HubId) -> Iterator[None]:
    """Anything that huggingface_hub raises inside becomes one line of a HubError."""
    try:
        yield
    except HubError:
        raise
    except Exception as error:
        raise _told(model, error) from error


def _told(model: HubId, error: Exception) -> HubError:
    from huggingface_hub import errors

    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.RevisionNotFoundError):
        told: HubError = HubMissingError(
            f"{model.repo} has no revision {model.revision!r}: name a branch, a tag or a commit"
        )
    elif isinstance(error, errors.GatedRepoError):
        told = HubAccessError(
            f"{model.repo} is gated: ask for access on its page, then log in with `hf auth login` ({status})"
        )
    elif status == 401:
        told = HubAccessError(
            f"{model.repo} is not on the hub, or private: check its name, or log in with `hf auth login` (401)"
        )
    elif status == 403:
        told = HubAccessError(f"the hub refuses {model.repo} to this user: look at its page and your token (403)")
    elif isinstance(error, errors.RepositoryNotFoundError):
        told = HubMissingError(f"there is no path {str(model)!r}, and the hub has no {model.repo} ({status})")
    elif status is not None:
        told = HubUnavailableError(f"{model} cannot be fetched: the hub answers {status}; try again later")
    elif isinstance(error, errors.OfflineModeIsEnabled):
        told = HubUnavailableError(f"{model} cannot be fetched: huggingface_hub is told to stay offline")
    elif isinstance(error, errors.LocalEntryNotFoundError) or _is_transport(error):
        told = HubUnavailableError(
            f"there is no path {str(model)!r}, and the hub cannot be reached ({_line(error)}): check the network"
        )
    else:
        told = HubError(f"{model} cannot be fetched: {type(error).__name__}: {_line(error)}")
    return told


def _is_transport(error: Exception) -> bool:
    """Whether the network failed; the library's HTTP client changed its name from release to release."""
    client = type(error).__module__.partition(".")[0]
    return isinstance(error, ConnectionError | TimeoutError) or client in ("httpx", "httpx2", "requests")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
