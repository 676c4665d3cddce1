"""A vocabulary of SentencePiece as GGUF stores it: its tokenizer, and that of a part of it."""

from __future__ import annotations

from collections.abc import Iterator

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

NORMAL, CONTROL, GIVEN, BYTE = 1, 3, 4, 6
"""Kinds of pieces: merged, never in a text, in a text whatever is around it, a byte of what no piece is for."""
SPACE = "\u2581"
BLANKS = 4  # of the pieces of several blanks or line ends, those of so many are kept


class Vocabulary:
    """All pieces of a model.

    A text is cut into single characters; then, as long as there are any, those neighbours are joined whose piece has
    the highest score. So what a text becomes depends on no piece that is not a part of its final ones.

    Args:
        pieces: texts, with U+2581 for blanks.
        scores: of the merged ones: the higher, the earlier they were found.
        kinds: as GGUF numbers them.
        special: the tokens 0, 1, ... and the pieces whose rows they get.
    """

    def __init__(self, pieces: list[str], scores: list[float], kinds: list[int], special: dict[str, str]):
        blank = [
            piece.replace(" ", SPACE) if kind == GIVEN else piece for piece, kind in zip(pieces, kinds, strict=True)
        ]
        self._pieces, self._scores, self._kinds, self._special = blank, scores, kinds, special
        self._merged = {piece: i for i, piece in enumerate(blank) if kinds[i] == NORMAL}

    def closed(self, texts: list[str], common: int) -> list[int]:
        """Rows of a part of the vocabulary, in their order, the special ones first.

        It has all pieces of the texts and all that those are merged from, so the texts are cut as before; the pieces of
        ASCII among the first `common`; bytes, so that any text can be written.
        """
        whole = self.tokenizer(everything := self._everything())
        found = {everything[i] for encoded in whole.encode_batch(texts) for i in encoded.ids}
        found |= {
            i for piece, i in self._merged.items() if piece.replace(SPACE, "").isascii() and self._first(i, common)
        }
        found |= {i for i, kind in enumerate(self._kinds) if kind == BYTE or (kind == GIVEN and self._blank(i))}
        waiting = [i for i in found if self._kinds[i] == NORMAL]
        while waiting:
            for pair in self._splits(self._pieces[waiting.pop()]):
                fresh = {self._merged[half] for half in pair} - found
                found |= fresh
                waiting += fresh
        rows = self._special_rows()
        return rows + sorted(found - set(rows))

    def tokenizer(self, rows: list[int]) -> Tokenizer:
        """Of the pieces in these rows, numbered as they come; the first ones are the special ones."""
        names = [*self._special, *(self._pieces[i] for i in rows[len(self._special) :])]
        words = {name: number for number, name in enumerate(names)}
        kept = [i for i in rows[len(self._special) :] if self._kinds[i] == NORMAL]
        merges = [
            pair
            for i in sorted(kept, key=lambda i: -self._scores[i])
            for pair in self._splits(self._pieces[i])
            if pair[0] in words and pair[1] in words
        ]
        tokenizer = Tokenizer(models.BPE(words, merges, fuse_unk=False, byte_fallback=True))
        tokenizer.normalizer = normalizers.Replace(" ", SPACE)
        tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
        tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in self._special])
        given = [self._pieces[i] for i in rows[len(self._special) :] if self._kinds[i] == GIVEN]
        tokenizer.add_tokens([AddedToken(piece, normalized=True) for piece in given])
        return tokenizer

    def _everything(self) -> list[int]:
        rows = self._special_rows()
        return rows + [i for i, kind in enumerate(self._kinds) if kind != CONTROL and i not in rows]

    def _special_rows(self) -> list[int]:
        return [self._pieces.index(piece) for piece in self._special.values()]

    def _first(self, row: int, common: int) -> bool:
        """Single characters are merged from nothing and come last."""
        return -self._scores[row] < common or len(self._pieces[row]) == 1

    def _blank(self, row: int) -> bool:
        piece = self._pieces[row]
        return len(piece) <= BLANKS and not piece.strip(SPACE + "\n\t")

    def _splits(self, piece: str) -> Iterator[tuple[str, str]]:
        """Pairs of pieces that make it."""
        for i in range(1, len(piece)):
            pair = (piece[:i], piece[i:])
            if pair[0] in self._merged and pair[1] in self._merged:
                yield pair
