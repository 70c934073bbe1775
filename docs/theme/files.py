"""A preprocessor of mdBook: pages link to files of the repository, which the site lacks. It adds a page for each of them.

mdBook calls it with `supports RENDERER`, or with the book as JSON on standard input.
"""

import json
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
LANGUAGES = {".rs": "rust,noplayground", ".yaml": "yaml", ".toml": "toml", ".sh": "bash", ".py": "python", ".go": "go", ".java": "java", ".js": "js"}


def site_path(target):
    """Where the site has a file of the repository. mdBook calls a README.md index.html, except in links."""
    if target.startswith("docs/") and target.endswith((".md", ".svg")):
        return target.removeprefix("docs/").replace("README.md", "index.md")
    return "files/" + (target.replace("README.md", "about.md") if target.endswith(".md") else f"{target}.md")


def links_as_pages(text, folder, page, found):
    """Turns links to files into links to their pages. `folder` holds the text in the repository, `page` is its page on the site."""

    def page_of(match):
        target = os.path.normpath(os.path.join(folder, match[2]))
        if "://" in match[2] or not (ROOT / target).exists():
            return match[0]
        site = site_path(target)
        if site.startswith("files/"):
            found.setdefault(target)
        return match[1] + os.path.relpath(site, os.path.dirname(page) or ".") + match[3]

    return LINK.sub(page_of, text)


def block(path):
    return f"````{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text().rstrip()}\n````\n"


def content(target, page, found):
    path = ROOT / target
    if path.suffix == ".md":
        return links_as_pages(path.read_text(), os.path.dirname(target), page, found)
    files = sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else []
    parts = "".join(f"\n## {file.name}\n\n{block(file)}" for file in files) or "\n" + block(path)
    return f"# {target}\n{parts}"


def chapters(items):
    for item in items:
        if isinstance(item, dict) and "Chapter" in item:
            yield item["Chapter"]
            yield from chapters(item["Chapter"]["sub_items"])


def main():
    if sys.argv[1:2] == ["supports"]:
        return
    _, book = json.load(sys.stdin)
    found = {}
    for chapter in chapters(book["items"]):
        path = chapter["source_path"]
        chapter["content"] = links_as_pages(chapter["content"], os.path.dirname(f"docs/{path}"), path, found)
    pages, done = [], set()
    while rest := sorted(set(found) - done):
        for target in rest:
            page = site_path(target)
            chapter = {"name": target, "content": content(target, page, found), "number": None, "sub_items": []}
            pages.append({"Chapter": {**chapter, "path": page, "source_path": None, "parent_names": []}})
            done.add(target)
    book["items"] += [{"PartTitle": "Files of the repository"}, *pages]
    json.dump(book, sys.stdout)


main()
