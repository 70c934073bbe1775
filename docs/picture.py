#!/usr/bin/env python3
"""Takes the picture of the README: runs the demo in a terminal of 80 by 24, and writes what stands there as an SVG.

    cargo build --release && docs/picture.py target/release/postdate > docs/demo.svg

Needs tmux, which is the terminal. Blocks and lines become shapes, so that no font tears them; text is held to the grid.
"""

import os
import re
import subprocess
import sys
import time
from html import escape

COLUMNS, ROWS, SECONDS = 80, 24, 11
WIDTH, HEIGHT, MARGIN = 8.4, 18, 14
FOREGROUND, BACKGROUND = "#d8dee9", "#1b1f27"
COLORS = ["#3b4252", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#d8dee9"]
BLOCKS = " ▏▎▍▌▋▊▉█"


def capture(program):
    """The screen, colours included, after some seconds of the demo and with a message of somebody else's in it."""
    tmux = ["tmux", "-L", f"postdate-picture-{os.getpid()}"]
    run = lambda *words: subprocess.run([*tmux, *words], check=True, capture_output=True, text=True).stdout
    run("-f", "/dev/null", "new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS), f"clear; {program} demo --for 20s")
    try:
        time.sleep(SECONDS)
        command = re.search(r"echo hi\|(kcat -Pb \S+ -t \S+)", run("capture-pane", "-p", "-S", "-40")).group(1)
        words = [*command.split(), "-k", "me", "-H", "postdate-after=1s"]
        subprocess.run(words, input="hello from kcat", text=True, check=True)
        time.sleep(1.5)
        lines = run("capture-pane", "-e", "-p").split("\n")
    finally:
        subprocess.run([*tmux, "kill-server"], capture_output=True)
    while lines and not any(words in lines[0] for words in ("yours has arrived", "postdate demo")):
        lines.pop(0)
    return lines


def runs(line, style):
    """(column, text, style) of each stretch of one style; the style goes on into the next line."""
    column, found = 0, []
    for part in re.split(r"(\x1b\[[0-9;]*m)", line):
        if part.startswith("\x1b"):
            apply(part[2:-1], style)
        elif part:
            found.append((column, part, dict(style)))
            column += len(part)
    return found


def apply(codes, style):
    codes = [int(code or 0) for code in codes.split(";")]
    while codes:
        code = codes.pop(0)
        if code == 0:
            style.clear()
        elif code == 1:
            style["bold"] = True
        elif code == 2:
            style["dim"] = True
        elif code == 22:
            style.pop("bold", None), style.pop("dim", None)
        elif code == 39:
            style.pop("color", None)
        elif 30 <= code <= 37:
            style["color"] = COLORS[code - 30]
        elif code == 38 and codes[0] == 5:
            style["color"] = COLORS[codes[1] % 8]
            del codes[:2]


def rectangle(column, row, size, top, height, fill):
    x, y = MARGIN + column * WIDTH, MARGIN + row * HEIGHT + top * HEIGHT
    return f'<rect x="{x:.1f}" y="{y:.2f}" width="{size * WIDTH:.1f}" height="{height * HEIGHT:.2f}" {fill} shape-rendering="crispEdges"/>'


def shapes(row, column, text, style):
    """One stretch, cut into blocks and words."""
    fill = f'fill="{style.get("color", FOREGROUND)}"' + (' opacity="0.6"' if style.get("dim") else "")
    for piece in re.finditer(r"([█-▏])\1*|[^ █-▏]+(?: [^ █-▏]+)*", text):
        word, at = piece.group(), column + piece.start()
        if word[0] in BLOCKS:
            size = len(word) * BLOCKS.index(word[0]) / 8
            yield rectangle(at, row, size, 0.1, 0.8, fill)
        else:
            weight = ' font-weight="bold"' if style.get("bold") else ""
            x, y = MARGIN + at * WIDTH, MARGIN + row * HEIGHT + HEIGHT * 0.75
            length = f'textLength="{len(word) * WIDTH:.1f}"' if len(word) > 1 else ""
            yield f'<text x="{x:.1f}" y="{y:.1f}" {length} {fill}{weight}>{escape(word)}</text>'


def svg(lines):
    style, body = {}, []
    while lines and not re.sub(r"\x1b\[[0-9;]*m", "", lines[-1]).strip():
        lines.pop()
    for row, line in enumerate(lines):
        for column, text, now in runs(line, style):
            body.extend(shapes(row, column, text, now))
    width, height = COLUMNS * WIDTH + 2 * MARGIN, len(lines) * HEIGHT + 2 * MARGIN
    font = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" role="img" aria-label="postdate demo">',
        f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>',
        f'<g font-family="{font}" font-size="14" xml:space="preserve">',
        *body,
        "</g>",
        "</svg>",
    ])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(svg(capture(os.path.abspath(sys.argv[1]))))
