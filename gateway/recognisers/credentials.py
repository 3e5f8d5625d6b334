"""Recognisers of credentials: API keys of common providers, our own keys, web tokens and private keys."""

from __future__ import annotations

import re
import string

from gateway.recognisers.recogniser import Match, Run, run_start
from gateway.records.api_keys import well_formed

_KEY = re.compile(
    "|".join(
        (
            r"sk-[A-Za-z0-9_-]{20}",  # OpenAI, Anthropic and those who follow them
            r"gh[opsur]_[A-Za-z0-9]{36}",
            r"github_pat_[A-Za-z0-9_]{22}",
            r"glpat-[A-Za-z0-9_-]{20}",
            r"A[KS]IA[A-Z0-9]{16}",  # AWS
            r"AIza[A-Za-z0-9_-]{35}",  # Google
            r"xox[abeoprs]-[A-Za-z0-9-]{10}",  # Slack
            r"[rs]k_(?:live|test)_[A-Za-z0-9]{16}",  # Stripe
            r"hf_[A-Za-z0-9]{30}",
            r"npm_[A-Za-z0-9]{36}",
            r"pypi-[A-Za-z0-9_-]{50}",
            r"dop_v1_[a-f0-9]{64}",  # DigitalOcean
            r"SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}",  # SendGrid
            r"eyJ[A-Za-z0-9_-]{10,150}\.[A-Za-z0-9_-]{10}",  # JSON web tokens
            r"rh_[0-9A-Za-z]{43}_[0-9A-Za-z]{6}(?![0-9A-Za-z])",  # ours
        )
    )
)
"""Expression for enough of a key to be sure."""
_BEGINNINGS = (
    *("sk-", "gho_", "ghp_", "ghs_", "ghu_", "ghr_", "github_pat_", "glpat-", "AKIA", "ASIA", "AIza", "xox", "hf_"),
    *("k_live_", "k_test_", "npm_", "pypi-", "dop_v1_", "SG.", "eyJ", "rh_"),
)
"""Each key has one of these in its first characters: to look for them is far quicker than to try the expression."""
_TOKEN = string.ascii_letters + string.digits + "_-."


class ApiKey:
    """API keys that can be recognised by their form."""

    reach = 170
    _rest = Run("A-Za-z0-9_-", ".")

    def find(self, text: str, start: int) -> Match | None:
        places = {at: word for word in _BEGINNINGS if (at := text.find(word, start)) >= 0}
        while places:
            at = min(places)
            word = places.pop(at)
            begin = at - word.startswith("k_")
            found = _KEY.match(text, begin) if begin >= start else None
            free = not text[max(begin - 1, 0) : begin].isalnum()
            if found and free and (word != "rh_" or well_formed(found[0])):
                return Match(begin, found.end(), self._rest)
            if (at := text.find(word, at + 1)) >= 0:
                places[at] = word
        return None

    def pending(self, text: str, start: int) -> int:
        return run_start(text, start, _TOKEN, self.reach)


_BEGIN = re.compile(r"-----BEGIN (?:[A-Z0-9]{1,12} ){0,2}PRIVATE KEY(?: BLOCK)?-----")
_END = re.compile(r"-----END (?:[A-Z0-9]{1,12} ){0,2}PRIVATE KEY(?: BLOCK)?-----")
_LONGEST_END = 60
_BODY = re.compile(r"[A-Za-z0-9+/=\s\\:,.-]*")
"""What stands between the two, also where line breaks are spelled out, with the headers of encrypted keys."""


class _Block:
    """The rest of a private key: up to its end, or to a character that none may have."""

    def consume(self, text: str, at: int, ended: bool) -> tuple[int, bool]:
        body = _BODY.match(text, at)
        assert body  # it may be empty
        end = _END.search(text, at, body.end())
        if end:
            return end.end(), True
        if body.end() < len(text) or ended:
            return body.end(), True
        return max(at, len(text) - _LONGEST_END), False


class PrivateKey:
    """Private keys in PEM and OpenPGP's armour, all of them."""

    reach = 70
    _rest = _Block()

    def find(self, text: str, start: int) -> Match | None:
        found = _BEGIN.search(text, start)
        return Match(found.start(), found.end(), self._rest) if found else None

    def pending(self, text: str, start: int) -> int:
        run = run_start(text, start, string.ascii_uppercase + string.digits + " -", self.reach)
        hyphen = text.find("-", run)
        return len(text) if hyphen < 0 else hyphen
