"""Recognisers of payment cards and bank accounts, both by their checksums."""

from __future__ import annotations

import re
import string

from gateway.recognisers.recogniser import Match, run_start

_DIGITS = re.compile(r"[0-9]+")
_ENOUGH = re.compile(r"[0-9](?<![0-9][0-9])(?<![0-9][.,][0-9])(?:[ -]?[0-9]){12}")
"""Expression for the start of a group, not in a fraction: as many digits as a card has at least."""
_LONGER = re.compile(r"[0-9]|\.[0-9]")
"""Expression after a number that goes on."""
_MIN_CARD, _MAX_CARD = 13, 19
_ISSUERS = re.compile(r"3[0-9]|4|5[0-8]|6|2[2-7]|81")
"""First digits of payment cards (ISO/IEC 7812): American Express, Diners, JCB, Visa, Mastercard, ..."""


class Card:
    """Numbers of payment cards: 13 to 19 digits, single spaces or hyphens between them, Luhn's checksum."""

    reach = 2 * _MAX_CARD + 1

    def find(self, text: str, start: int) -> Match | None:
        found = _ENOUGH.search(text, start)
        while found:
            if end := self._end(text, found.start()):
                return Match(found.start(), end)
            found = _ENOUGH.search(text, found.start() + 1)
        return None

    def pending(self, text: str, start: int) -> int:
        run = run_start(text, start, string.digits + " -.", self.reach)
        digit = _DIGITS.search(text, run)
        return digit.start() if digit else len(text)

    def _end(self, text: str, begin: int) -> int | None:
        """The end of the longest number from here, if there is one."""
        if not _ISSUERS.match(text, begin):
            return None
        digits: list[int] = []
        best, at, separator = None, begin, False
        while at < len(text) and len(digits) < _MAX_CARD:
            character = text[at]
            if "0" <= character <= "9":
                digits.append(ord(character) - 48)
                separator = False
                if len(digits) >= _MIN_CARD and not _LONGER.match(text, at + 1) and luhn(digits):
                    best = at + 1
            elif separator or character not in " -":
                break
            else:
                separator = True
            at += 1
        return best


def luhn(digits: list[int]) -> bool:
    """Whether the last digit is the checksum of the others (ISO/IEC 7812-1, annex B)."""
    doubled = (digit * 2 - 9 * (digit > 4) for digit in digits[-2::-2])
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


_LENGTHS = {
    country: int(length)
    for country, length in re.findall(
        "([A-Z]{2}):([0-9]+)",
        """
        AD:24 AE:23 AL:28 AT:20 AZ:28 BA:20 BE:16 BG:22 BH:22 BI:27 BR:29 BY:28 CH:21 CR:22 CY:28 CZ:24 DE:22 DJ:27
        DK:18 DO:28 EE:20 EG:29 ES:24 FI:18 FK:18 FO:18 FR:27 GB:22 GE:22 GI:23 GL:18 GR:27 GT:28 HN:28 HR:21 HU:28
        IE:22 IL:23 IQ:23 IS:26 IT:27 JO:30 KW:30 KZ:20 LB:28 LC:32 LI:21 LT:20 LU:20 LV:21 LY:25 MC:27 MD:24 ME:22
        MK:19 MN:20 MR:27 MT:31 MU:30 NI:28 NL:18 NO:15 OM:23 PK:24 PL:28 PS:29 PT:25 QA:29 RO:24 RS:22 RU:33 SA:24
        SC:31 SD:18 SE:24 SI:19 SK:24 SM:27 SO:23 ST:25 SV:28 TL:23 TN:24 TR:26 UA:29 VA:22 VG:24 XK:20 YE:30
        """,
    )
}
"""Length of an account number by country (the registry of ISO 13616)."""
_CHECK_DIGITS = re.compile(r"[0-9][0-9](?<=[A-Za-z]{2}[0-9]{2})(?<![A-Za-z0-9][A-Za-z]{2}[0-9]{2})")
"""Expression for a country and check digits at the start of a word."""
_START = re.compile(r"[A-Za-z](?:[A-Za-z](?:[0-9](?:[0-9][A-Za-z0-9 ]*)?)?)?\Z")
_MAX_IBAN = max(_LENGTHS.values())


class Iban:
    """International bank account numbers, in one piece or with single spaces, with the checksum of ISO 7064."""

    reach = 2 * _MAX_IBAN

    def find(self, text: str, start: int) -> Match | None:
        digits = _CHECK_DIGITS.search(text, start)
        while digits:
            begin = digits.start() - 2
            if begin >= start and (end := self._end(text, begin)):
                return Match(begin, end)
            digits = _CHECK_DIGITS.search(text, digits.start() + 1)
        return None

    def pending(self, text: str, start: int) -> int:
        run = run_start(text, start, string.ascii_letters + string.digits + " ", self.reach)
        begin = _START.search(text, run)
        while begin:
            if not text[max(begin.start() - 1, 0) : begin.start()].isalnum() and self._open(text, begin.start()):
                return begin.start()
            begin = _START.search(text, begin.start() + 1)
        return len(text)

    def _open(self, text: str, begin: int) -> bool:
        """Whether the number that seems to begin here is not all there yet."""
        if len(text) - begin < 2:
            return True
        length = _LENGTHS.get(text[begin : begin + 2].upper())
        # The character after the last one must not belong to it either.
        return length is not None and "  " not in text[begin:] and len(text[begin:].replace(" ", "")) <= length

    def _end(self, text: str, begin: int) -> int | None:
        length = _LENGTHS.get(text[begin : begin + 2].upper())
        if length is None:
            return None
        characters, at = "", begin
        while len(characters) < length:
            character = text[at : at + 1]
            if character == " " and text[at - 1] != " ":
                at += 1
                continue
            if not (character.isascii() and character.isalnum()):
                return None
            characters += character
            at += 1
        number = "".join(str(int(character, 36)) for character in characters[4:] + characters[:4])
        if text[at : at + 1].isalnum() or int(number) % 97 != 1:
            return None
        return at
