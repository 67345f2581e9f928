"""Numbers as text, in one module so that no two tables disagree."""


def share(value: float | None) -> str:
    """A score as the paper prints it.

    >>> share(0.37), share(1.0), share(-0.37), share(-0.001), share(None)
    ('.37', '1.00', '−.37', '.00', '–')
    """
    if value is None:
        return "–"
    text = f"{abs(value):.2f}".removeprefix("0")
    return f"−{text}" if value < 0 and text != ".00" else text


TOO_FEW = "[too few]"
"""Stands for an interval that too few combinations, seeds or partitions would make unreliable."""


def share_with_interval(value: float | None, low: float | None, high: float | None) -> str:
    """A score and its 95 % interval, or that there are too few combinations for one.

    >>> share_with_interval(0.37, 0.28, 0.47), share_with_interval(0.37, None, None)
    ('.37 [.28, .47]', '.37 [too few]')
    """
    if value is None or low is None or high is None:
        return share(value) if value is None else f"{share(value)} {TOO_FEW}"
    return f"{share(value)} [{share(low)}, {share(high)}]"


def signed(value: float | None) -> str:
    """A difference.

    >>> signed(0.05), signed(-0.4), signed(0.0)
    ('+.05', '−.40', '.00')
    """
    if value is None:
        return "–"
    text = share(abs(value))
    return text if text == ".00" else ("+" if value > 0 else "−") + text


def signed_with_interval(value: float | None, low: float | None, high: float | None) -> str:
    """A difference and its 95 % interval, or that there are too few combinations for one.

    >>> signed_with_interval(0.05, -0.1, 0.2), signed_with_interval(0.05, None, None)
    ('+.05 [−.10, +.20]', '+.05 [too few]')
    """
    if value is None or low is None or high is None:
        return signed(value) if value is None else f"{signed(value)} {TOO_FEW}"
    return f"{signed(value)} [{signed(low)}, {signed(high)}]"


def in_percent(value: float) -> str:
    """A share as a whole percentage, rounded as `share` rounds it.

    >>> in_percent(0.37), in_percent(-0.045), in_percent(1.0)
    ('37', '−4', '100')
    """
    number = int(f"{value:.2f}".replace(".", ""))
    return f"−{-number}" if number < 0 else str(number)


def signed_points(value: float) -> str:
    """A difference of shares in percentage points.

    >>> signed_points(0.667), signed_points(-0.05), signed_points(0.0)
    ('+67', '−5', '0')
    """
    text = in_percent(value)
    return text if text.startswith("−") or text == "0" else f"+{text}"


def points_interval(low: float | None, high: float | None, *, is_signed: bool = False) -> str:
    """The ends of an interval as whole percentages, or nothing if there is no interval.

    >>> points_interval(0.5, 0.83), points_interval(-0.1, 0.2, is_signed=True), points_interval(None, None)
    ('50 to 83', '−10 to +20', '')
    """
    if low is None or high is None:
        return ""
    form = signed_points if is_signed else in_percent
    return f"{form(low)} to {form(high)}"


def p_value(value: float) -> str:
    """A p-value.

    >>> p_value(0.0004), p_value(0.0312), p_value(1.0)
    ('<.001', '.031', '1.000')
    """
    return "<.001" if value < 0.001 else f"{value:.3f}".removeprefix("0")


def expectation(value: float) -> str:
    """An expected count, which may be tiny.

    >>> expectation(0.1135), expectation(0.068), expectation(0.00098), expectation(3e-9)
    ('0.11', '0.068', '0.001', '3e-09')
    """
    if value >= 0.1:
        return f"{value:.2f}"
    return f"{value:.3f}" if value >= 0.0005 else f"{value:.0e}"


def whole(value: int) -> str:
    """A count.

    >>> whole(1234567)
    '1,234,567'
    """
    return f"{value:,}"


_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def in_words(value: int) -> str:
    """A small number as a word, and a larger one in digits.

    >>> in_words(3), in_words(40)
    ('three', '40')
    """
    return _WORDS[value] if value < len(_WORDS) else str(value)


def dollars(value: float | None) -> str:
    """An amount in dollars; None is an unknown price.

    >>> dollars(12.3456), dollars(0.0), dollars(None)
    ('12.35', '0.00', 'unknown')
    """
    return "unknown" if value is None else f"{value:.2f}"


def hours(value: float | None) -> str:
    """A number of hours; None is unknown.

    >>> hours(15.13), hours(0.004), hours(0.0), hours(None)
    ('15.1', '< 0.1', '0', 'unknown')
    """
    if value is None:
        return "unknown"
    if value == 0:
        return "0"
    return f"{value:.1f}" if value >= 0.05 else "< 0.1"


def duration(seconds: float) -> str:
    """A duration in the unit that people would use.

    >>> duration(0.4), duration(75), duration(200), duration(7800)
    ('1 s', '75 s', '3 min', '2 h 10 min')
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def percent(share: float) -> str:
    """A whole percentage that is 100 only when everything is done.

    >>> percent(0.0), percent(0.427), percent(0.999), percent(1.0)
    ('0 %', '42 %', '99 %', '100 %')
    """
    return f"{int(100 * share + 1e-9)} %"
