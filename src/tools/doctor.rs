//! `doctor`: is everything in order, and if not, what to do.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::index::Index;
use crate::index::embed::{GOLDEN_TEXT, LEAST_AGREEMENT};
use crate::index::vector::segment::VectorSegment;
use crate::ingest::embed::Coverage;
use crate::kb::{Kb, Slot};
use crate::llm::Llm;
use crate::store::segments_folder;
use crate::wire::{Check, Doctor, DoctorV1};

pub fn run(kb: &Kb) -> Doctor {
    let checks: Vec<Check> = CHECKS.iter().map(|(name, check)| report(name, check(kb))).collect();
    Doctor { schema_version: DoctorV1, ok: checks.iter().all(|check| check.ok), checks }
}

/// The answer where there is nothing else to look at, because the configuration cannot be used.
pub fn unusable(error: &Error) -> Doctor {
    let checks = vec![Check { name: "config", ok: false, detail: error.to_string(), hint: error.hint() }];
    Doctor { schema_version: DoctorV1, ok: false, checks }
}

/// What was found to be well, or what is wrong.
type Finding = Result<String>;

type Probe = fn(&Kb) -> Finding;

const CHECKS: &[(&str, Probe)] = &[
    ("config", config),
    ("root", root),
    ("data_dir", data_dir),
    ("store", store),
    ("index", index),
    ("embeddings", embeddings),
    ("last_ingest", last_ingest),
    ("embedding_model", embedding_model),
    ("reranker", reranker),
    ("llm", llm),
];

fn report(name: &'static str, finding: Finding) -> Check {
    match finding {
        Ok(detail) => Check { name, ok: true, detail, hint: None },
        Err(error) => Check { name, ok: false, detail: error.to_string(), hint: error.hint() },
    }
}

fn config(kb: &Kb) -> Finding {
    let file = kb.config.file.as_ref().map_or("no file, defaults".to_owned(), |path| path.display().to_string());
    Ok(match kb.config.warnings.len() {
        0 => file,
        n => format!("{file}; {n} warnings: {}", kb.config.warnings.join("; ")),
    })
}

fn root(kb: &Kb) -> Finding {
    let mut roots = Vec::new();
    for source in &kb.config.sources {
        std::fs::read_dir(&source.root).map_err(Error::io("read root", &source.root))?;
        roots.push(source.root.display().to_string());
    }
    Ok(roots.join(", "))
}

fn data_dir(kb: &Kb) -> Finding {
    let folder = kb.data_dir();
    if kb.config.readonly {
        return Ok(format!("{}, opened readonly", folder.display()));
    }
    let Some(existing) = folder.ancestors().find(|folder| folder.exists()) else {
        return Ok(folder.display().to_string());
    };
    let probe = existing.join(format!(".kebab-lite-probe-{}", std::process::id()));
    std::fs::write(&probe, b"").map_err(Error::io("write to data folder", existing))?;
    std::fs::remove_file(&probe).map_err(Error::io("remove probe from data folder", &probe))?;
    Ok(format!("{}, writable", folder.display()))
}

fn store(kb: &Kb) -> Finding {
    kb.read_store(|store| {
        let integrity = store.integrity()?;
        if integrity != "ok" {
            return Err(Error::StoreCorrupt { path: kb.data_dir().to_owned(), cause: integrity });
        }
        let (documents, chunks) = store.counts()?;
        Ok(format!("{documents} documents, {chunks} chunks, revision {}, integrity ok", store.revision()?))
    })
}

fn index(kb: &Kb) -> Finding {
    kb.read_store(|store| {
        let entries = store.segments()?;
        let folder = segments_folder(kb.data_dir());
        let (_, chunks) = store.counts()?;
        let live: u64 = entries.iter().map(|entry| u64::from(entry.chunks) - entry.tombstones.len() as u64).sum();
        let opened = Index::open(&folder, store.revision()?, entries, Vec::new(), None)?;
        opened.segments.iter().try_for_each(|live| live.segment.verify())?;
        if live != chunks {
            return Err(damaged(&folder, format!("it holds {live} chunks, the store {chunks}")));
        }
        Ok(format!("{} segments, {live} chunks, revision {}, checksums ok", opened.segments.len(), opened.revision))
    })
}

fn embeddings(kb: &Kb) -> Finding {
    kb.read_store(|store| {
        let Some(coverage) = Coverage::known(kb, store)? else {
            return Ok("no embedding model is configured: searching is lexical".into());
        };
        let folder = segments_folder(kb.data_dir());
        for entry in store.vector_segments()? {
            VectorSegment::open(&folder.join(&entry.file))?.verify()?;
        }
        let (embedded, chunks) = (coverage.embedded, coverage.chunks);
        let model = coverage.model.map_or("a model that was not used yet".to_owned(), |model| model);
        Ok(match coverage.chunks - coverage.embedded {
            0 => format!("all {chunks} chunks are embedded with {model}, checksums ok"),
            _ => {
                format!("{embedded} of {chunks} chunks are embedded with {model}: `kebab-lite ingest` embeds the rest")
            }
        })
    })
}

fn damaged(folder: &Path, cause: String) -> Error {
    Error::IndexDamaged { path: folder.to_owned(), cause }
}

/// That no model is configured is no fault: searching needs none.
fn llm(kb: &Kb) -> Finding {
    match Llm::new(&kb.config.llm) {
        Some(llm) => llm.check(LLM_TIMEOUT),
        None => Ok("none configured; `ask` quotes passages with --extractive".into()),
    }
}

/// Listing models takes a server no time.
const LLM_TIMEOUT: Duration = Duration::from_secs(3);

fn last_ingest(kb: &Kb) -> Finding {
    let last = kb.read_store(|store| store.meta_text("last_ingest_at"))?.unwrap_or_else(|| "never".into());
    Ok(match kb.interrupted() {
        Some(before) => format!(
            "{last}; the one begun at {} by process {} was interrupted, the corpus is whole as its last complete step left it: run `kebab-lite ingest`",
            before.since, before.pid
        ),
        None => last,
    })
}

/// Longer than any model takes to load; an endpoint has a timeout of its own.
const LOADING: Duration = Duration::from_secs(600);

fn embedding_model(kb: &Kb) -> Finding {
    let embedder = match kb.embedder(LOADING) {
        Slot::Off => return Ok("off: searching is lexical (models.embedding.provider = \"none\")".into()),
        Slot::Loading => return Err(Error::Internal { cause: "the model is still loading".into() }),
        Slot::Failed(error) => return Err(error),
        Slot::Ready(embedder) => embedder,
    };
    let started = Instant::now();
    let vector = embedder.query(GOLDEN_TEXT)?;
    let took = started.elapsed().as_secs_f64() * 1000.0;
    let mut detail = format!(
        "{}, {} dimensions, on {}; a question of {} words took {took:.1} ms",
        embedder.id(),
        vector.len(),
        embedder.runtime(),
        GOLDEN_TEXT.split(' ').count(),
    );
    if let Some(cosine) = embedder.agreement()? {
        detail.push_str(&format!(", cosine {cosine:.5} to the reference"));
        if cosine.is_nan() || cosine < LEAST_AGREEMENT {
            return Err(Error::ModelUnreachable {
                endpoint: String::new(),
                model: embedder.id().into(),
                cause: format!("{detail}: its vectors are not this model's"),
                hint: "Run with --onnxruntime none, which uses the engine within the program.".into(),
            });
        }
    }
    if !embedder.passed_over().is_empty() {
        detail.push_str(&format!("; passed over: {}", embedder.passed_over().join("; ")));
    }
    Ok(detail)
}

fn reranker(kb: &Kb) -> Finding {
    match kb.reranker(LOADING) {
        Slot::Off => Ok("off: models.reranker.model names no folder".into()),
        Slot::Loading => Err(Error::Internal { cause: "the model is still loading".into() }),
        Slot::Failed(error) => Err(error),
        Slot::Ready(reranker) => Ok(format!("{} on {}", reranker.name(), reranker.runtime())),
    }
}
