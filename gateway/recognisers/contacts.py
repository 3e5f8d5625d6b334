"""Recognisers of e-mail addresses, telephone numbers and IP addresses."""

from __future__ import annotations

import ipaddress
import re
import string

from gateway.recognisers.recogniser import Match, Run, run_start

_ALNUM = string.ascii_letters + string.digits
_LOCAL = _ALNUM + "._%+'-"
"""Characters of an address before the @, those in use."""
_MAX_LOCAL = 64
"""RFC 5321, 4.5.3.1.1."""
_DOMAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}(?:\.[A-Za-z0-9-]{1,63}){0,2}?\.[A-Za-z]{2}")
"""Expression for enough of a domain to be sure."""
_MAX_DOMAIN = 63 + 2 * 64 + 3


class Email:
    """Addresses as RFC 5321 has them, without quotes and without characters beyond ASCII."""

    reach = _MAX_LOCAL + 1 + _MAX_DOMAIN
    _rest = Run("A-Za-z0-9-", ".")

    def find(self, text: str, start: int) -> Match | None:
        at = text.find("@", start)
        while at >= 0:
            before = text[max(start, at - _MAX_LOCAL) : at]
            local = before[len(before.rstrip(_LOCAL)) :].lstrip(".'")
            begin = at - len(local)
            if local and (domain := _DOMAIN.match(text, at + 1)):
                return Match(begin, domain.end(), self._rest)
            at = text.find("@", at + 1)
        return None

    def pending(self, text: str, start: int) -> int:
        run = run_start(text, start, _LOCAL + "@", self.reach)
        at = text.find("@", run)
        if at < 0:
            return max(run, len(text) - _MAX_LOCAL)
        return max(run, at - _MAX_LOCAL)


_NUMBER = re.compile(r"[0-9]+|[+(]")
_ENOUGH = re.compile(r"[0-9+(](?<![0-9][0-9])(?:[ ./()\-]{0,2}[0-9]){6}")
"""At the start of a group: as many digits as a number has at least."""
_INTERNATIONAL = re.compile(r"(?:\+|00)[1-9](?:[ .\-/()]{0,2}[0-9]){6,14}(?![0-9])")
"""ITU-T E.164: at most 15 digits."""
_NORTH_AMERICAN = re.compile(
    r"(?:1[ .-])?(?:\([2-9][0-9]{2}\) ?|[2-9][0-9]{2}[ .\-/])[2-9][0-9]{2}[ .-][0-9]{4}(?![0-9])"
)
_TRUNK = re.compile(r"(?:\(0[1-9][0-9]{0,4}\)|0[1-9][0-9]{0,4})(?=[ ./\-][ ./\-]?[0-9]{2})")
_GROUP = re.compile(r"[ ./\-]{1,2}[0-9]{2,8}(?![0-9])")
_CONTIGUOUS = re.compile(r"0[1-9][0-9]{8,9}(?![0-9])")
_DATE = re.compile(r"\(?[0-3]?[0-9]([./\-])[01]?[0-9]\1(?:19|20)?[0-9]{2}(?![0-9])")
_NUMBER_CHARACTERS = string.digits + " -./()+"
_MIN_TRUNK_DIGITS, _MAX_TRUNK_DIGITS, _MAX_GROUPS = 9, 12, 5


class Phone:
    """Telephone numbers: international ones, North American ones, and national ones with a leading 0."""

    reach = 64

    def find(self, text: str, start: int) -> Match | None:
        found = _ENOUGH.search(text, start)
        while found:
            begin = found.start()
            before = text[begin - 1] if begin else " "
            if not (before.isalnum() or before == "+") and (end := self._end(text, begin, before)):
                return Match(begin, end)
            found = _ENOUGH.search(text, begin + 1)
        return None

    def pending(self, text: str, start: int) -> int:
        run = run_start(text, start, _NUMBER_CHARACTERS, self.reach)
        number = _NUMBER.search(text, run)
        return number.start() if number else len(text)

    def _end(self, text: str, begin: int, before: str) -> int | None:
        if found := _INTERNATIONAL.match(text, begin):
            return found.end()
        # A part of something longer, such as the number of an article.
        if before in "-./_" or _DATE.match(text, begin):
            return None
        if found := _NORTH_AMERICAN.match(text, begin) or _CONTIGUOUS.match(text, begin):
            return found.end()
        trunk = _TRUNK.match(text, begin)
        if trunk is None:
            return None
        end, digits = trunk.end(), sum(map(str.isdigit, trunk[0]))
        for _ in range(_MAX_GROUPS):
            group = _GROUP.match(text, end)
            more = sum(map(str.isdigit, group[0])) if group else 0
            if group is None or digits + more > _MAX_TRUNK_DIGITS:
                break
            end, digits = group.end(), digits + more
        return end if digits >= _MIN_TRUNK_DIGITS else None


_HEX = string.hexdigits + ":."
_SEPARATORS = re.compile(r"\.[0-9]{1,3}\.[0-9]|:[0-9A-Fa-f]{0,4}:")
"""Characters that every address of version 4 or 6 contains."""
_RUN = re.compile(r"[0-9A-Fa-f:.]{2,46}")


class IpAddress:
    """IPv4 and IPv6 addresses."""

    reach = 48

    def find(self, text: str, start: int) -> Match | None:
        separators = _SEPARATORS.search(text, start)
        while separators:
            at = separators.start()
            head = text[max(start, at - 46) : at]
            begin = at - len(head) + len(head.rstrip(_HEX))
            before = text[begin - 1] if begin else " "
            run = _RUN.match(text, begin)
            if run and not (before.isalnum() or before in ":._") and (end := self._end(text, run)):
                return Match(begin, end)
            # A run of these characters holds one address or none.
            separators = _SEPARATORS.search(text, max(run.end() if run else 0, at + 1))
        return None

    def pending(self, text: str, start: int) -> int:
        return run_start(text, start, _HEX, self.reach)

    def _end(self, text: str, run: re.Match[str]) -> int | None:
        after = text[run.end() : run.end() + 1]
        if after.isalnum() or after == "_" or len(run[0]) > 45:
            return None
        address = run[0].rstrip(".:") if not run[0].endswith("::") else run[0]
        if not address.strip(":"):
            return None
        try:
            ipaddress.ip_address(address)
        except ValueError:
            return None
        return run.start() + len(address)
