"""30 questions over the sample folder, ten of them without an answer there, half of them Korean.

usage: evaluate.py PROGRAM SAMPLE [--extractive] [--mode MODE]

The model is that of KEBAB_MODELS_LLM_*, else the one of serve.py. Prints a line for each question, then the table:
  answered        of the answerable ones
  cited right     of the answers given: a citation holds a line where the answer stands (citation precision counts
                  every citation, not the best one)
  refused         of the unanswerable ones, and of the answerable ones
  language        of the answers given: in the language of the question
  top_score       the gate's evidence, least of the answerable and most of the unanswerable
"""

import json
import os
import re
import sys

from model import HERE, Program, scratch, served


def speaks(text):
    letters = [c for c in text if c.isalpha()]
    hangul = sum("가" <= c <= "힣" for c in letters)
    return "ko" if hangul > 0.2 * max(1, len(letters)) else "en"


def hits(citation, question):
    first, last = citation.get("start", citation.get("line_start")), citation.get("end", citation.get("line_end"))
    low, high = question["lines"]
    return citation["path"] == question["path"] and first <= high and low <= last


def share(part, whole):
    return f"{part}/{whole}" + (f" = {100 * part / whole:.0f} %" if whole else "")


def main():
    program, sample, *flags = sys.argv[1:]
    with open(os.path.join(HERE, "questions.jsonl"), encoding="utf-8") as file:
        questions = [json.loads(line) for line in file]
    extractive = "--extractive" in flags
    with scratch() as data:
        if extractive:
            report(Program(program, sample, data, {}), questions, flags)
        else:
            with served() as settings:
                report(Program(program, sample, data, settings), questions, flags)


def report(program, questions, flags):
    program.run("ingest")
    rows = []
    for question in questions:
        done = program.run("ask", *flags, question["question"], codes=(0, 1, 2))
        if done.returncode == 2:
            error = json.loads(done.stderr.splitlines()[-1])
            print(f"! {question['id']} {question['lang']} {error['code']}: left out of the table")
            continue
        answer = json.loads(done.stdout)
        cited = [citation["citation"] for citation in answer["citations"]]
        right = [hits(citation, question) for citation in cited] if question["answerable"] else [False] * len(cited)
        rows.append((question, answer, right))
        said = answer["refusal_reason"] or re.sub(r"\s+", " ", answer["answer"])[:90]
        mark = "+" if any(right) or (not question["answerable"] and not answer["grounded"]) else "-"
        score = answer["retrieval"]["top_score"]
        confidence = answer.get("confidence")
        shown = "    " if confidence is None else f"{confidence:.2f}"
        print(f"{mark} {question['id']} {question['lang']} evidence {score:.2f} confidence {shown}  {said}")
    model = rows[0][1]["model"]["id"]
    print(f"\nmodel {model}, retrieval {rows[0][1]['retrieval']['mode']}\n")
    print(f"{'':18}{'Korean':>16}{'English':>16}{'all':>16}")

    def line(name, value):
        cells = [value([row for row in rows if row[0]["lang"] == lang]) for lang in ("ko", "en")] + [value(rows)]
        print(f"{name:18}" + "".join(f"{cell:>16}" for cell in cells))

    asked = lambda rows, answerable: [row for row in rows if row[0]["answerable"] == answerable]
    given = lambda rows: [row for row in rows if row[1]["grounded"]]
    flat = lambda rows: [right for row in rows for right in row[2]]
    line("answered", lambda rows: share(len(given(asked(rows, True))), len(asked(rows, True))))
    line("cited right", lambda rows: share(sum(any(row[2]) for row in given(asked(rows, True))), len(given(asked(rows, True)))))
    line("citations right", lambda rows: share(sum(flat(given(asked(rows, True)))), len(flat(given(asked(rows, True))))))
    line("refused, no answer", lambda rows: share(len(asked(rows, False)) - len(given(asked(rows, False))), len(asked(rows, False))))
    line("refused, answer", lambda rows: share(len(asked(rows, True)) - len(given(asked(rows, True))), len(asked(rows, True))))
    line("language", lambda rows: share(sum(speaks(row[1]["answer"]) == row[0]["lang"] for row in given(rows)), len(given(rows))))
    scores = lambda answerable: [row[1]["retrieval"]["top_score"] for row in rows if row[0]["answerable"] == answerable]
    print(f"\ntop_score: answerable from {min(scores(True)):.2f}, unanswerable up to {max(scores(False)):.2f}")


if __name__ == "__main__":
    main()
