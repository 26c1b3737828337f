"""Daybook 내보내기(JSON)를 하늘 볼트의 마크다운 노트로 바꾼다.

사용법:
    python3 import_daybook.py export.json ~/notes/일기 [--dry-run] [--tz Asia/Seoul]

Daybook은 항목 하나를 다음과 같은 객체로 내보낸다.

    {"id": 812, "ts": 1715480520000, "title": "", "body": "<p>…</p>", "labels": ["여행"], "mood": 4}

- ts는 밀리초 단위 UTC 시각이다. 초 단위로 착각하면 모든 일기가 56,000년대에 놓인다.
- body는 HTML이지만 실제로 쓰이는 태그는 여덟 가지뿐이다(2025년 5월, 내보내기 파일 17개를 조사).
- mood는 1(나쁨)부터 5(좋음)까지이고, 기록하지 않았으면 0이다.

같은 파일을 두 번 가져와도 노트가 늘어나지 않는다. 파일 이름에 항목 번호가 들어가기 때문이다.
이미 있는 파일은 덮어쓰지 않는다. 가져온 뒤 사용자가 고친 내용을 지키기 위해서다.
"""

import argparse
import json
import re
import sys
import unicodedata
from dataclasses import dataclass
from datetime import datetime, timezone
from html.parser import HTMLParser
from pathlib import Path
from zoneinfo import ZoneInfo

MAX_NAME_BYTES = 240  # 하늘의 파일 이름 한도. 한글로는 80자다.
FORBIDDEN = re.compile(r'[\\/:*?"<>|\x00-\x1f]')
MOODS = {1: "나쁨", 2: "별로", 3: "보통", 4: "괜찮음", 5: "좋음"}


@dataclass
class Entry:
    """Daybook 항목 하나."""

    id: int
    time: datetime
    title: str
    body: str
    labels: list[str]
    mood: int

    @classmethod
    def parse(cls, raw: dict, tz: ZoneInfo) -> "Entry":
        """JSON 객체에서 항목을 만든다. 꼭 필요한 값이 없으면 ValueError를 던진다."""
        try:
            time = datetime.fromtimestamp(int(raw["ts"]) / 1000, timezone.utc).astimezone(tz)
            return cls(int(raw["id"]), time, (raw.get("title") or "").strip(), raw.get("body") or "",
                       list(raw.get("labels") or []), int(raw.get("mood") or 0))
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"항목을 읽을 수 없음: {error!r}") from error


class MarkdownWriter(HTMLParser):
    """Daybook이 쓰는 여덟 가지 태그(p, br, b, i, a, li, h2, img)를 마크다운으로 옮긴다.

    그 밖의 태그는 무시하고 글자만 남긴다. 이미지는 경로만 적어 두며, 파일은 사용자가 직접 옮겨야 한다.
    """

    MARKS = {"b": "**", "i": "*"}

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.out: list[str] = []
        self.link: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in self.MARKS:
            self.out.append(self.MARKS[tag])
        elif tag == "br":
            self.out.append("\n")
        elif tag == "li":
            self.out.append("\n- ")
        elif tag == "h2":
            self.out.append("\n\n## ")
        elif tag == "a":
            self.link = values.get("href")
            self.out.append("[")
        elif tag == "img":
            self.out.append(f"![](_files/{values.get('src') or ''})")

    def handle_endtag(self, tag: str) -> None:
        if tag in self.MARKS:
            self.out.append(self.MARKS[tag])
        elif tag in ("p", "h2"):
            self.out.append("\n\n")
        elif tag == "a":
            self.out.append(f"]({self.link or ''})")
            self.link = None

    def handle_data(self, data: str) -> None:
        self.out.append(data)


def to_markdown(html: str) -> str:
    """HTML 조각을 마크다운으로 바꾸고 빈 줄을 정리한다."""
    writer = MarkdownWriter()
    writer.feed(html)
    writer.close()
    return re.sub(r"\n{3,}", "\n\n", "".join(writer.out)).strip()


def file_name(entry: Entry) -> str:
    """`2024-05-12 제목 (812).md` 꼴의 이름. NFC로 정규화하고 240바이트를 넘지 않게 자른다."""
    title = unicodedata.normalize("NFC", FORBIDDEN.sub(" ", entry.title)).strip() or "일기"
    prefix, suffix = f"{entry.time:%Y-%m-%d} ", f" ({entry.id}).md"
    room = MAX_NAME_BYTES - len(prefix.encode()) - len(suffix.encode())
    # 글자 중간에서 잘린 바이트는 버린다.
    title = title.encode()[:room].decode(errors="ignore").rstrip()
    return prefix + title + suffix


def note(entry: Entry) -> str:
    """머리말을 붙인 노트 전체."""
    tags = ["일기", *(label.replace(" ", "-") for label in entry.labels)]
    if entry.mood in MOODS:
        tags.append(f"기분-{MOODS[entry.mood]}")
    head = ["---", f"title: {json.dumps(entry.title or '일기', ensure_ascii=False)}",
            f"created: {entry.time.isoformat(timespec='seconds')}",
            f"tags: {json.dumps(tags, ensure_ascii=False)}", f"daybook_id: {entry.id}", "---", ""]
    return "\n".join(head) + "\n" + to_markdown(entry.body) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Daybook 내보내기를 하늘 볼트로 가져온다.")
    parser.add_argument("export", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--dry-run", action="store_true", help="쓰지 않고 무엇을 할지 보여 준다")
    parser.add_argument("--tz", type=ZoneInfo, default=ZoneInfo("Asia/Seoul"))
    args = parser.parse_args()

    written = kept = failed = 0
    for raw in json.loads(args.export.read_text(encoding="utf-8-sig"))["entries"]:
        try:
            entry = Entry.parse(raw, args.tz)
        except ValueError as error:
            print(error, file=sys.stderr)
            failed += 1
            continue
        path = args.target / file_name(entry)
        if path.exists():
            kept += 1
            continue
        if not args.dry_run:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(note(entry), encoding="utf-8", newline="\n")
        written += 1
    print(f"새로 씀 {written}, 이미 있음 {kept}, 실패 {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
