"""mergekit's side of mergekit_configs.py, run by the Python of an environment that has mergekit.

    python mergekit_peer.py tokenizers FOLDER...     give each folder a tokenizer of as many words as its config says
    python mergekit_peer.py merge JOBS.json          run every [configuration, output folder]; print what failed as JSON

The tensors are written before anything else can fail (a model card, a tokenizer), and the tensors are what counts.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import yaml
from mergekit.config import MergeConfiguration
from mergekit.merge import run_merge
from mergekit.options import MergeOptions
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast


def give_tokenizer(folder: Path) -> None:
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(size)}, unk_token="w0"))
    special = {"unk_token": "w0", "bos_token": "w1", "eos_token": "w2", "pad_token": "w3"}
    PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(folder)


def merge(config: Path, out: Path) -> str:
    """What it failed with; "" where it did not."""
    try:
        found = MergeConfiguration.model_validate(yaml.safe_load(config.read_text()))
        run_merge(found, str(out), MergeOptions(write_model_card=False, random_seed=0, quiet=True))
    except BaseException as error:  # whatever it is, the next one is run
        return f"{type(error).__name__}: {str(error)[:300]}"
    return ""


def main() -> None:
    logging.disable(logging.WARNING)
    if sys.argv[1] == "tokenizers":
        for name in sys.argv[2:]:
            give_tokenizer(Path(name))
    else:
        jobs = json.loads(Path(sys.argv[2]).read_text())
        print(json.dumps({config: merge(Path(config), Path(out)) for config, out in jobs}))


if __name__ == "__main__":
    main()
