"""The same table as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence

from slomofast.report.tables import OURS, Entry, Table

FILES = ("summary", "per_domain", "cyclic", "lifelong", "ccc", "architectures", "recurring", "efficiency")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_TEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "–": "--",
    "−": "$-$",
    "·": r"$\cdot$",
    "×": r"$\times$",
    "*": r"$^{*}$",
    "\n": " ",
    "\r": " ",
}


def letter(number: int) -> str:
    """The mark of a footnote: a, b, ..., z, aa, ab, ...

    >>> letter(0), letter(25), letter(26)
    ('a', 'z', 'aa')
    """
    head, last = divmod(number, len(_LETTERS))
    return (letter(head - 1) if head else "") + _LETTERS[last]


def markdown(tables: Sequence[Table]) -> str:
    """GitHub's Markdown: best in bold, second in italics, footnotes below each table."""
    return "\n".join(_markdown(table) for table in tables)


def _markdown(table: Table) -> str:
    lines = [f"## {plain_markdown(table.title)}", "", plain_markdown(table.caption), ""]
    lines.append("| " + " | ".join(plain_markdown(c) for c in (*table.heads, *table.columns)) + " |")
    lines.append("|" + " --- |" * len(table.heads) + " ---: |" * len(table.columns))
    for row in table.rows:
        labels = [plain_markdown(label) for label in row.labels]
        cells = [_markdown_cell(entry, row.origin) for entry in row.entries]
        lines.append("| " + " | ".join(labels + cells) + " |")
    if table.notes:
        lines.append("")
        lines += [f"- <sup>{letter(n)}</sup> {plain_markdown(text)}" for n, text in enumerate(table.notes)]
    return "\n".join([*lines, ""])


def _markdown_cell(entry: Entry, origin: str) -> str:
    text = plain_markdown(entry.plain)
    if origin == OURS and entry.rank == 1:
        text = f"**{text}**"
    elif origin == OURS and entry.rank == 2:
        text = f"_{text}_"
    return text + (f"<sup>{', '.join(letter(n) for n in entry.notes)}</sup>" if entry.notes else "")


def plain_markdown(text: str) -> str:
    """Text on one line in which nothing is taken for HTML, a link, a star of emphasis or the edge of a cell.

    Underscores and code between backticks are left alone.

    >>> plain_markdown("<b> a|b & [c](d)")
    '&lt;b&gt; a\\\\|b & [c]\\\\(d)'
    """
    text = re.sub(r"&(?=#?\w+;)", "&amp;", " ".join(text.splitlines()))
    text = text.replace("\\", r"\\").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("|", r"\|").replace("*", r"\*").replace("](", r"]\(").replace("][", r"]\[")


def latex(tables: Sequence[Table]) -> str:
    """LaTeX for `booktabs`, `graphicx` and `xcolor`: best bold, second on grey, footnotes below."""
    head = "% needs \\usepackage{booktabs}, \\usepackage{graphicx} and \\usepackage[table]{xcolor}\n"
    return head + "\n".join(_latex(table) for table in tables)


def _latex(table: Table) -> str:
    lines = [
        r"\begin{table*}[t]",
        r"\centering",
        rf"\caption{{{tex(table.title)}. {tex(table.caption)}}}",
        rf"\label{{tab:{table.name}}}",
        r"\resizebox{\textwidth}{!}{%",
        rf"\begin{{tabular}}{{{'l' * len(table.heads)}{'r' * len(table.columns)}}}",
        r"\toprule",
        " & ".join(tex(c) for c in (*table.heads, *table.columns)) + r" \\",
        r"\midrule",
    ]
    before = None
    for row in table.rows:
        if before is not None and row.labels[0] != before:
            lines.append(r"\midrule")
        before = row.labels[0]
        cells = [_latex_cell(entry, row.origin) for entry in row.entries]
        lines.append(" & ".join([*(tex(label) for label in row.labels), *cells]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}}"]
    if table.notes:
        notes = r" \\ ".join(f"$^{{{letter(n)}}}$ {tex(text)}" for n, text in enumerate(table.notes))
        lines.append(rf"\par\smallskip\begin{{minipage}}{{\textwidth}}\footnotesize {notes}\end{{minipage}}")
    return "\n".join([*lines, r"\end{table*}", ""])


def _latex_cell(entry: Entry, origin: str) -> str:
    text = tex(entry.plain)
    if origin == OURS and entry.rank == 1:
        text = rf"\textbf{{{text}}}"
    elif origin == OURS and entry.rank == 2:
        text = rf"\cellcolor{{gray!20}}{text}"
    elif origin != OURS and entry.plain != "–":
        text = rf"\textit{{{text}}}"
    return text + (f"$^{{{','.join(letter(n) for n in entry.notes)}}}$" if entry.notes else "")


def tex(text: str) -> str:
    """Plain text with everything LaTeX would take for a command written out.

    >>> tex("mixed_after 5 %")
    'mixed\\\\_after 5 \\\\%'
    """
    return "".join(_TEX.get(character, character) for character in text)


def comma_separated(tables: Sequence[Table]) -> str:
    """One line per number: labels, column, value, deviation, number of runs, whose it is, footnote, record ids."""
    heads = list(dict.fromkeys(head for table in tables for head in table.heads))
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(
        ["table", *map(_column, heads), "column", "origin", "value", "deviation", "runs", "note", "records"]
    )
    for table in tables:
        for row in table.rows:
            labels = dict(zip(table.heads, row.labels, strict=True))
            for column, entry in zip(table.columns, row.entries, strict=True):
                if entry.value is None and not entry.text:
                    continue
                value = entry.text if entry.value is None else f"{entry.value:.6g}"
                spread = "" if entry.deviation is None else f"{entry.deviation:.6g}"
                note = "; ".join(table.notes[n] for n in entry.notes)
                known = [labels.get(head, "") for head in heads]
                ids = " ".join(entry.records)
                runs = len(entry.records) or ""
                writer.writerow([table.name, *known, column, row.origin, value, spread, runs, note, ids])
    return buffer.getvalue()


def _column(head: str) -> str:
    return head.lower().replace(" ", "_")
