"""30 questions over the sample folder, ten of them without an answer there, half of them Korean.

usage: evaluate.py PROGRAM SAMPLE [--extractive] [--mode MODE] [--minutes N] [--seconds N] [--tokens N]

The model is that of KEBAB_MODELS_LLM_*, else the one of serve.py. It takes --minutes (20) at most: what has not been asked
by then is left out of the table, whose last lines say so. --seconds (60) is the time of one question, and --tokens (700)
what a question is given of the documents: a small model reads slowly and loses itself in long prompts.

Prints a line for each question, then the table:
  answered        of the answerable ones
  cited right     of the answers given: a citation holds a line where the answer stands (citation precision counts
                  every citation, not the best one)
  refused         of the unanswerable ones, and of the answerable ones
  language        of the answers given: in the language of the question
  marks set       of the answers given: the model left marks out, and the program found the passages
  top_score       the gate's evidence, least of the answerable and most of the unanswerable
"""

import argparse
import collections
import json
import os
import re
import time

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
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("sample")
    parser.add_argument("--extractive", action="store_true")
    parser.add_argument("--mode", default="hybrid")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=700)
    options = parser.parse_args()
    with open(os.path.join(HERE, "questions.jsonl"), encoding="utf-8") as file:
        questions = [json.loads(line) for line in file]
    # Both languages and both kinds are among the first of them, however far it comes.
    questions = [question for start in range(10) for question in questions[start::10]]
    with scratch() as folder:
        config = os.path.join(folder, "config.toml")
        with open(config, "w", encoding="utf-8") as file:
            file.write(f"[models.llm]\nrequest_timeout_secs = {options.seconds}\n")
            if not options.extractive:
                file.write(f"[rag]\nmax_context_tokens = {options.tokens}\n")
        data = os.path.join(folder, "data")
        flags = ["--mode", options.mode] + (["--extractive"] if options.extractive else [])
        if options.extractive:
            report(Program(options.program, options.sample, data, {}, config), questions, flags, options.minutes)
        else:
            with served() as settings:
                report(Program(options.program, options.sample, data, settings, config), questions, flags, options.minutes)


def report(program, questions, flags, minutes):
    program.run("ingest")
    rows, failed, started = [], collections.Counter(), time.monotonic()
    asked = 0
    for question in questions:
        if time.monotonic() - started > 60 * minutes:
            break
        asked += 1
        done = program.run("ask", *flags, question["question"], codes=(0, 1, 2))
        if done.returncode == 2:
            error = json.loads(done.stderr.splitlines()[-1])
            failed[error["code"]] += 1
            print(f"! {question['id']} {question['lang']} {error['code']}: left out of the table", flush=True)
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
        print(f"{mark} {question['id']} {question['lang']} evidence {score:.2f} confidence {shown}  {said}", flush=True)
    if not rows:
        raise SystemExit(f"no question was answered or refused: {dict(failed)}")
    model = rows[0][1]["model"]["id"]
    print(f"\nmodel {model}, retrieval {rows[0][1]['retrieval']['mode']}\n")
    print(f"{'':18}{'Korean':>16}{'English':>16}{'all':>16}")

    def line(name, value):
        cells = [value([row for row in rows if row[0]["lang"] == lang]) for lang in ("ko", "en")] + [value(rows)]
        print(f"{name:18}" + "".join(f"{cell:>16}" for cell in cells))

    of = lambda rows, answerable: [row for row in rows if row[0]["answerable"] == answerable]
    given = lambda rows: [row for row in rows if row[1]["grounded"]]
    flat = lambda rows: [right for row in rows for right in row[2]]
    line("answered", lambda rows: share(len(given(of(rows, True))), len(of(rows, True))))
    line("cited right", lambda rows: share(sum(any(row[2]) for row in given(of(rows, True))), len(given(of(rows, True)))))
    line("citations right", lambda rows: share(sum(flat(given(of(rows, True)))), len(flat(given(of(rows, True))))))
    line("refused, no answer", lambda rows: share(len(of(rows, False)) - len(given(of(rows, False))), len(of(rows, False))))
    line("refused, answer", lambda rows: share(len(of(rows, True)) - len(given(of(rows, True))), len(of(rows, True))))
    line("language", lambda rows: share(sum(speaks(row[1]["answer"]) == row[0]["lang"] for row in given(rows)), len(given(rows))))
    marked = lambda row: "got the mark" in row[1].get("hint", "")
    line("marks set", lambda rows: share(sum(map(marked, given(rows))), len(given(rows))))
    scores = lambda answerable: [row[1]["retrieval"]["top_score"] for row in rows if row[0]["answerable"] == answerable]
    print(f"\ntop_score: answerable from {min(scores(True), default=0):.2f}, unanswerable up to {max(scores(False), default=0):.2f}")
    reasons = collections.Counter(row[1]["refusal_reason"] for row in rows if not row[1]["grounded"])
    print("refusals:", ", ".join(f"{reason} {count}" for reason, count in reasons.most_common()) or "none")
    print(f"asked {asked} of {len(questions)} in {(time.monotonic() - started) / 60:.1f} minutes; no answer from the server: {dict(failed)}")


if __name__ == "__main__":
    main()
