#!/usr/bin/env python3
"""Evidence fusion against reciprocal rank fusion, over the same candidates of the same program.

Puts one or more test collections (folders with corpus.jsonl, queries.jsonl, qrels.tsv) into ONE store, asks every query
with a trace, and computes nDCG@10 of what the program answered, of equal-weight RRF (k = 60) over the trace's two lists of
100, and of either list alone. Documents are judged by their best chunk.

usage: fusion.py --bin PATH --work DIR COLLECTION… [--max-queries N]      (an existing DIR is used again)
"""
import argparse, hashlib, json, math, os, re, subprocess


def rows(path):
    return [json.loads(line) for line in open(path, encoding="utf-8") if line.strip()]


def file_name(doc_id):
    return re.sub(r"[^A-Za-z0-9_-]", "_", doc_id)[:60] + "-" + hashlib.sha1(doc_id.encode()).hexdigest()[:10] + ".md"


def corpus(folder):
    """The folder that holds the documents: a collection may name another one's file instead of its own."""
    text = open(f"{folder}/corpus.jsonl", encoding="utf-8").readline()
    return folder if text.startswith("{") else os.path.dirname(os.path.join(folder, text.strip()))


def collection(folder, root):
    """Writes the documents below a folder of their own; returns queries and judgements by path."""
    name, own, qrels = os.path.basename(os.path.normpath(folder)), corpus(folder), {}
    paths = {}
    for doc in rows(f"{own}/corpus.jsonl"):
        file = file_name(doc["_id"])
        path = paths[doc["_id"]] = f"{os.path.basename(os.path.normpath(own))}/{file[-5:-3]}/{file}"
        if not os.path.exists(f"{root}/{path}"):
            os.makedirs(os.path.dirname(f"{root}/{path}"), exist_ok=True)
            title = (doc.get("title") or "").strip().replace("\n", " ")
            with open(f"{root}/{path}", "w", encoding="utf-8") as out:
                out.write((f"# {title}\n\n" if title else "") + doc.get("text", "") + "\n")
    for line in open(f"{folder}/qrels.tsv", encoding="utf-8"):
        query, doc, grade = (line.rstrip("\n").split("\t") + ["", ""])[:3]
        if grade.lstrip("-").replace(".", "").isdigit() and float(grade) > 0 and doc in paths:
            qrels.setdefault(query, {})[paths[doc]] = int(float(grade))
    return name, [(q["text"], qrels[q["_id"]]) for q in rows(f"{folder}/queries.jsonl") if q["_id"] in qrels]


def ndcg(ranked, relevant):
    gain = lambda grades: sum((2**grade - 1) / math.log2(i + 2) for i, grade in enumerate(grades))
    best = gain(sorted(relevant.values(), reverse=True)[:10])
    return gain([relevant.get(path, 0) for path in list(dict.fromkeys(ranked))[:10]]) / best


def rrf(lists):
    scores = {}
    for entries in lists:
        for rank, entry in enumerate(entries[:100], 1):
            total, _ = scores.get(entry["chunk_id"], (0, None))
            scores[entry["chunk_id"]] = (total + 1 / (60 + rank), entry["doc_path"])
    return [path for _, path in sorted(scores.values(), key=lambda pair: -pair[0])]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("collections", nargs="+")
    parser.add_argument("--bin", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--max-queries", type=int)
    args = parser.parse_args()
    root = f"{args.work}/root"
    sets = [collection(folder, root) for folder in args.collections]
    base = [args.bin, "--root", root, "--data-dir", f"{args.work}/data"]
    subprocess.run(base + ["ingest", "--quiet"], check=True, stdout=subprocess.DEVNULL)
    columns = ["hybrid", "rrf", "lexical", "vector"]
    totals, asked = dict.fromkeys(columns, 0.0), 0
    print(f"{'':16}{'queries':>8}" + "".join(f"{column:>10}" for column in columns))
    for name, queries in sets:
        queries, sums = queries[: args.max_queries], dict.fromkeys(columns, 0.0)
        for start in range(0, len(queries), 100):
            batch = queries[start : start + 100]
            lines = "".join(json.dumps({"query": text, "k": 100, "trace": True}) + "\n" for text, _ in batch)
            out = subprocess.run(base + ["search", "--bulk", "--json"], input=lines.encode(), check=True, capture_output=True)
            for (_, relevant), line in zip(batch, out.stdout.decode().splitlines(), strict=True):
                response = json.loads(line)["response"]
                trace = response["trace"]
                paths = lambda entries: [entry["doc_path"] for entry in entries]
                sums["hybrid"] += ndcg(paths(response["hits"]), relevant)
                sums["rrf"] += ndcg(rrf([trace["lexical"], trace["vector"]]), relevant)
                sums["lexical"] += ndcg(paths(trace["lexical"]), relevant)
                sums["vector"] += ndcg(paths(trace["vector"]), relevant)
        print(f"{name:16}{len(queries):>8}" + "".join(f"{sums[column] / len(queries):>10.4f}" for column in columns))
        asked += len(queries)
        for column in columns:
            totals[column] += sums[column]
    print(f"{'all':16}{asked:>8}" + "".join(f"{totals[column] / asked:>10.4f}" for column in columns))


if __name__ == "__main__":
    main()
