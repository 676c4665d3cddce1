"""Which files beside the weights go on into the output, byte for byte, and which stay behind."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from agentmerge.errors import Note, Problem, SourceError, Where
from agentmerge.files.documents import any_json, dangling, leads_nowhere, read_bytes
from agentmerge.sources.beside import is_tokenizer, tokenizer_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

WEIGHTS = (
    ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx", ".npz", ".pkl",
    ".distcp", ".ot", ".tflite", ".mlmodel", ".nemo",
)  # fmt: skip
NOT_COPIED = {"README.md", "merge_record.json", "adapter_config.json"}
"""An adapter_config.json makes transformers look for an adapter's weights."""
QUANTISED = {"hf_quant_config.json", "quantize_config.json", "quant_config.json", "quantization_config.json"}
"""What engines read of a quantisation that the output does not have."""
INDEX = re.compile(r"\.(?:safetensors|bin|h5|msgpack|pt|pth)\.index\b.*\.json$")
TRAINING = re.compile(
    r"optimizer|scheduler|trainer_|training_|rng_state|events\.out|zero_to_fp32|global_step|extra_state|fsdp_config"
    r"|(?:all|train|eval|test|predict)_results\.json$|latest$|latest_checkpointed_iteration|checkpoint[-_]\d"
)
"""How the names of a trainer's own files begin."""
LOGS = re.compile(
    r"nohup|slurm|wandb$|runs$|logs?$|tensorboard|tb_logs|tblogs|lightning_logs|mlruns|swanlog|outputs?$|__pycache__$"
    r"|[\w.-]*\.(?:log|out|err|ipynb|tfevents[\w.-]*|pyc|lock|tmp|swp|bak|pid|orig|rej)(?:\.\d+|\.gz)*$"
    r"|std(?:out|err)|core\.\d+$|[\w.-]*~$|[\w.-]*_log\.(?:txt|jsonl|json|csv)$|log_history"
    r"|(?:train|training|eval|debug|run|log)\.(?:txt|jsonl|sh)$"
)
"""How the names of logs, notebooks and leavings begin."""
LARGEST = 256 << 20  # bytes; a side file beyond this is weights under another name
KNOWN = ("config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json")
"""What is copied beside the tokenizer's files from a folder that may hold anything."""
MODELS_OWN = re.compile(
    r"(?:config|generation_config|modules|model_index|config_sentence_transformers|params)\.json$|[\w.-]*processor_config"
    r"|(?:modeling|configuration|image_processing|processing|feature_extraction|video_processing|__init__)[\w.-]*\.py$"
    r"|[\w.-]*\.(?:md|pdf|png|jpe?g|gif|svg|webp|gitattributes)$|licen[cs]e|notice|use_policy|copying|requirements",
    re.IGNORECASE,
)
"""What is the model's and no tokenizer's."""
SMALL = 1 << 20  # bytes of a file that may name folders


@dataclass(frozen=True, slots=True)
class Listing:
    """The side files of an output, by their relative path, and what stays behind."""

    paths: dict[str, Path] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    """What an output may miss, and why it stays behind."""


def side_files(base: Path, tokenizer: Path | None = None, *, known_only: bool = False) -> dict[str, bytes]:
    """Every side file of the base by its relative path; the tokenizer's from another folder where one is given.

    Weights and their indices, training state, logs, adapters, quantisation, hidden files, README.md and earlier merge
    records stay behind.

    Args:
        base: the base's folder.
        tokenizer: the folder whose tokenizer is taken; None takes the base's.
        known_only: the base is a single file, and what lies beside it may be anybody's: take only well-known names.

    Raises:
        SourceError: as `listed`.
    """
    return {name: read_bytes(path) for name, path in listed(base, tokenizer, known_only=known_only).paths.items()}


def listed(base: Path, tokenizer: Path | None = None, *, known_only: bool = False) -> Listing:
    """Where the side files lie; arguments as for `side_files`.

    Raises:
        SourceError: a file is a link that leads nowhere, can't be opened, or differs between base and tokenizer, and
            its name does not tell whose it is.
    """
    mine = _beside(base) if known_only else _walk(base)
    if tokenizer is None:
        paths = mine.paths
    else:
        theirs, named = _walk(tokenizer), tokenizer_names(base) | tokenizer_names(tokenizer)
        ours = {name: path for name, path in mine.paths.items() if not _of_tokenizer(name, named)}
        donated = {name: path for name, path in theirs.paths.items() if _of_tokenizer(name, named)}
        _check_whose(ours, theirs.paths)
        paths = ours | donated
    problems = [problem for path in paths.values() for problem in _unreadable(path)]
    if problems:
        raise SourceError(*problems)
    return Listing(dict(sorted(paths.items())), mine.left)


def may_go_on(sizes: Mapping[str, int]) -> list[str]:
    """Of all the files of a model's repository, those beside its weights that `listed` would find, and its card.

    Args:
        sizes: bytes of every file by its relative path.
    """
    heavy = {folder for name in sizes if PurePosixPath(name).suffix in WEIGHTS for folder in _folders(name)}
    return [name for name, size in sizes.items() if size <= LARGEST and _goes_on(name) and not _folders(name) & heavy]


def _folders(name: str) -> set[str]:
    return {str(folder) for folder in PurePosixPath(name).parents} - {"."}


def _goes_on(name: str) -> bool:
    """Whether a file of a repository goes on, or tells the licence, an adapter or a quantisation."""
    if name in {"README.md", "adapter_config.json"} | QUANTISED:
        return True
    unwanted = any(part.startswith(".") or TRAINING.match(part) or LOGS.match(part) for part in name.split("/"))
    if unwanted or name in NOT_COPIED or INDEX.search(name.rpartition("/")[2]):
        return False
    return PurePosixPath(name).suffix not in WEIGHTS


def left_behind(base: Path, listing: Listing, weights: Iterable[str]) -> list[Note]:
    """What the output will lack although a file of the base names it: parts of the model in folders of their own.

    Args:
        base: the base's folder.
        listing: of its side files.
        weights: the files that are merged, relative to the folder.
    """
    merged = {name.partition("/")[0] for name in weights}
    named = {word for path in listing.paths.values() for word in _words(path)}
    notes = []
    for name, why in listing.left.items():
        if name in named and name not in merged:
            text = f"{name} stays behind ({why}), though a file of the base names it: copy it into the output"
            notes.append(Note(text, where=Where(path=str(base / name))))
    return notes


def _of_tokenizer(name: str, named: frozenset[str]) -> bool:
    return is_tokenizer(name) or name in named


def _check_whose(ours: dict[str, Path], theirs: dict[str, Path]) -> None:
    """Raise SourceError where base and tokenizer have different files that may be a tokenizer's or not."""
    for name in sorted(ours.keys() & theirs.keys()):
        path, other = ours[name], theirs[name]
        if MODELS_OWN.match(name.rpartition("/")[2]) or "/" in name or leads_nowhere(path) or leads_nowhere(other):
            continue
        if read_bytes(path) != read_bytes(other):
            raise SourceError(
                f"inputs.tokenizer_from: {path} and {other} differ, and the name does not tell whether it is the "
                "tokenizer's",
                expected="the same file in both",
                todo="Put the one that the output shall have into both folders, or copies of them.",
                where=Where(path=str(path)),
            )


def _beside(folder: Path) -> Listing:
    """The well-known files of a folder itself; nothing below it is looked at."""
    names = (path for path in sorted(folder.iterdir()) if path.name in KNOWN or is_tokenizer(path.name))
    return Listing({p.name: p for p in names if p.suffix not in WEIGHTS and (p.is_file() or leads_nowhere(p))})


def _walk(folder: Path) -> Listing:
    found = Listing()
    for name, path in _entries(folder):
        if path.suffix in WEIGHTS:
            continue
        if path.is_dir():
            found.left[name] = "a link to a folder" if path.is_symlink() else "it holds weights"
        elif leads_nowhere(path) or path.stat().st_size <= LARGEST:
            found.paths[name] = path
        else:
            found.left[name] = f"more than {LARGEST >> 20} MiB"
    return found


def _entries(folder: Path, prefix: str = "") -> Iterator[tuple[str, Path]]:
    """Every file that may go on, and the folders that may not, by relative path."""
    for path in sorted(folder.iterdir()):
        name = prefix + path.name
        if path.name.startswith(".") or TRAINING.match(path.name) or LOGS.match(path.name):
            continue
        if name in NOT_COPIED | QUANTISED or INDEX.search(path.name):
            continue
        if path.is_dir() and not path.is_symlink() and not _holds_weights(path):
            yield from _entries(path, f"{name}/")
        elif path.is_file() or path.is_dir() or leads_nowhere(path):
            yield name, path


def _holds_weights(folder: Path) -> bool:
    """Other checkpoints, adapters, optimiser states: a folder with weights somewhere in it is none of the model's."""
    return any(path.suffix in WEIGHTS for path in folder.rglob("*"))


def _unreadable(path: Path) -> tuple[Problem, ...]:
    """Why a file can't be opened."""
    if leads_nowhere(path):
        return dangling(path).problems
    try:
        with path.open("rb"):
            return ()
    except OSError as error:
        return (Problem(f"{path}: can't be read: {error.strerror}", where=Where(path=str(path))),)


def _words(path: Path) -> Iterator[str]:
    """The keys and texts of a JSON file as the first parts of paths: what it may name."""
    if path.suffix != ".json" or is_tokenizer(path.name) or leads_nowhere(path) or path.stat().st_size > SMALL:
        return
    left: list[Any] = [any_json(path)]
    for value in left:  # which grows
        if isinstance(value, dict):
            left += [*value, *value.values()]
        elif isinstance(value, list):
            left += value
        elif isinstance(value, str):
            yield value.removeprefix("./").partition("/")[0]
