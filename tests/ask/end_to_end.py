"""The program against a real model: ask, stream, follow up, split, and open what was cited.

usage: end_to_end.py PROGRAM

A model of 135 million parameters answers badly, so this does not ask whether it is right. It checks what must hold
whatever a model says: an answer that is given is made of marks whose passages open on the lines cited and hold what is
said; everything else is a refusal with a reason; the server's own counts arrive; a seed makes answers repeat.
"""

import json
import os
import re
import sys

from model import Program, scratch, served

NOTES = {
    "backup.md": "# Backup\n\nThe backup runs every night at 02:30.\n\nIt keeps fourteen copies in the vault.\n",
    "port.md": "# Port\n\nThe daemon listens on port 8787.\n",
    "저장소.md": "# 저장소\n\n메타데이터 저장소로는 SQLite를 골랐다.\n",
}

# The last two where a question was put anew by the model, whatever it made of it.
REASONS = {"llm_self_judge", "llm_stream_aborted", "score_gate", "no_chunks"}


def checked(program, answer):
    """True if it is an answer; what it cites is opened."""
    marks = re.findall(r"\[(\d+)\]", answer["answer"])
    if not answer["grounded"]:
        assert answer["refusal_reason"] in REASONS, answer
        assert answer["citations"] == [] and answer["answer"], answer
        return False
    assert answer["refusal_reason"] is None and marks, answer
    assert {f"[{mark}]" for mark in marks} == {cited["marker"] for cited in answer["citations"]}, answer
    for cited in answer["citations"]:
        opened = program.lines(cited["citation"]["uri"])
        assert opened.strip() and opened in NOTES[cited["citation"]["path"]], (cited, opened)
    return True


def main():
    with served() as settings, scratch() as folder:
        root, data = os.path.join(folder, "notes"), os.path.join(folder, "data")
        os.makedirs(root)
        for name, text in NOTES.items():
            with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                file.write(text)
        # A model this small may go on for ever, in Korean above all.
        config = os.path.join(folder, "config.toml")
        with open(config, "w", encoding="utf-8") as file:
            file.write("[models.llm]\nrequest_timeout_secs = 60\n[models.embedding]\nprovider = 'none'\n")
        program = Program(sys.argv[1], root, data, settings, config)
        program.run("ingest")
        doctor = program.json("doctor")
        llm = next(check for check in doctor["checks"] if check["name"] == "llm")
        assert llm["ok"], llm
        print("doctor:", llm["detail"])

        given = 0
        questions = ["When does the backup run?", "Which port does the daemon listen on?", "저장소로 무엇을 골랐나?"]
        for question in questions:
            answer = program.json("ask", "--explain", question, codes=(0, 1))
            assert answer["usage"]["prompt_tokens"] > 50 and answer["usage"]["completion_tokens"] > 0, answer["usage"]
            given += checked(program, answer)
            print(f"ask: {question} -> {answer['refusal_reason'] or answer['answer']!r}")
            print(f"     it said {answer['explain'].get('reply', '')[:200]!r}, confidence {answer.get('confidence')}")

        again = [program.json("ask", "--seed", "7", "--explain", questions[0], codes=(0, 1)) for _ in range(2)]
        if not any(answer["refusal_reason"] == "llm_stream_aborted" for answer in again):
            assert again[0]["explain"]["reply"] == again[1]["explain"]["reply"], again

        streamed = program.run("ask", "--stream", questions[0], codes=(0, 1))
        events = [json.loads(line) for line in streamed.stderr.splitlines()]
        kinds = [event["kind"] for event in events]
        assert kinds[0] == "retrieval_done" and kinds[-1] == "final" and kinds.count("final") == 1, kinds
        assert events[-1]["answer"] == json.loads(streamed.stdout)
        print("stream:", kinds.count("token"), "pieces")

        first = program.json("ask", "--session", "e2e", questions[0], codes=(0, 1))
        checked(program, first)
        follow_up = program.json("ask", "--session", "e2e", "--explain", "How many copies does it keep?", codes=(0, 1))
        checked(program, follow_up)
        print("follow-up, looked up as:", follow_up["explain"]["question"])
        sessions = program.json("ask", "--list-sessions")["sessions"]
        kept = sum(answer["refusal_reason"] != "llm_stream_aborted" for answer in (first, follow_up))
        assert sum(session["turns"] for session in sessions) == kept, sessions

        split = program.json("ask", "--multi-hop", "When does the backup run, and which port is open?", codes=(0, 1))
        reason = split["refusal_reason"]
        assert reason in REASONS | {None, "multi_hop_decompose_failed"}, split
        print("multi-hop:", [hop["question"] for hop in split.get("hops", [])] or reason)

        quoted = program.json("ask", "--extractive", questions[0])
        assert checked(program, quoted) and "02:30" in quoted["answer"], quoted
        print(f"{given} of {len(questions)} answers of the model were given, all of them with citations that open")


if __name__ == "__main__":
    main()
