"""transformers is silent for a while and speaks afterwards as before."""

from types import SimpleNamespace

import pytest

from agentmerge.importance.quiet import quiet


class Logging:
    """The part of transformers.utils.logging that is used."""

    def __init__(self, level, bars):
        self.level, self.bars = level, bars

    def get_verbosity(self):
        return self.level

    def set_verbosity(self, level):
        self.level = level

    def set_verbosity_error(self):
        self.level = 40

    def is_progress_bar_enabled(self):
        return self.bars

    def enable_progress_bar(self):
        self.bars = True

    def disable_progress_bar(self):
        self.bars = False


@pytest.mark.parametrize("bars", [True, False])
@pytest.mark.parametrize("level", [10, 30])
@pytest.mark.parametrize("fails", [True, False])
def test_what_was_set_is_set_again(level, bars, fails):
    logging = Logging(level, bars)
    try:
        with quiet(SimpleNamespace(utils=SimpleNamespace(logging=logging))):
            assert (logging.level, logging.bars) == (40, False)
            if fails:
                raise OSError
    except OSError:
        assert fails
    assert (logging.level, logging.bars) == (level, bars)
