//! The engine that runs ONNX models, chosen once a process: the library of ONNX Runtime where a usable one is found,
//! tract otherwise. Models are opened on it and run one sequence at a time.
//!
//! Refuses: batches (mixed lengths are slower and larger than one text after another), and any output of the engine
//! but its answers: what it logs goes nowhere.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use ort::environment::Environment;
use ort::logging::LogLevel;
use ort::session::builder::GraphOptimizationLevel;
use ort::session::{Session, SessionInputValue};
use ort::value::{TensorElementType, TensorRef, ValueType};

use super::library;
use crate::config::RuntimeLibrary;

pub struct Runtime {
    environment: Environment,
    /// The library's path and version; None is tract.
    library: Option<(PathBuf, String)>,
    /// Libraries that were passed over, and why.
    pub rejected: Vec<String>,
}

/// Where a model's graph is.
pub enum Graph<'a> {
    Bytes(&'a [u8]),
    File(PathBuf),
}

/// A model on the engine. It answers one question at a time.
pub struct Net {
    session: Session,
    inputs: Vec<(String, Input)>,
    outputs: Vec<String>,
}

/// What a graph wants to know of a sequence.
#[derive(Clone, Copy)]
enum Input {
    Ids,
    Mask,
    Types,
}

/// A tensor as the graph gives it.
pub struct Answer {
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}

/// The version of tract that Cargo.toml names.
const TRACT: &str = "0.23.9";

/// The engine of this process. The first caller's places decide: a started engine cannot be changed.
pub fn runtime(places: &RuntimeLibrary) -> Result<&'static Runtime, String> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    RUNTIME.get_or_init(|| Runtime::start(places)).as_ref().map_err(Clone::clone)
}

pub(super) static LIBRARY_IS_LOADED: AtomicBool = AtomicBool::new(false);

/// True once a library of ONNX Runtime is in use by this process, or about to be.
pub fn library_is_loaded() -> bool {
    LIBRARY_IS_LOADED.load(Ordering::Relaxed)
}

impl Runtime {
    fn start(places: &RuntimeLibrary) -> Result<Runtime, String> {
        let (found, rejected) = library::find(places);
        let mute: ort::logging::LoggerFunction = Arc::new(|_, _, _, _, _| {});
        let text = |error: ort::Error| error.to_string();
        let (environment, library) = match found {
            Some(found) => {
                // Its answers were looked at, so this does not fail; if it did, `ort` could not be started again.
                let builder = ort::init_from(&found.path).map_err(|error| error.to_string())?;
                drop(found.library);
                let environment = builder.with_telemetry(false).with_logger(mute).build().map_err(text)?;
                // Otherwise each remark is composed before it is thrown away.
                environment.set_log_level(LogLevel::Fatal);
                (environment, Some((found.path, found.version)))
            }
            None => {
                ort::set_api(ort_tract::api());
                (ort::init().with_telemetry(false).with_logger(mute).build().map_err(text)?, None)
            }
        };
        Ok(Runtime { environment, library, rejected })
    }

    /// Name, version and place.
    pub fn name(&self) -> String {
        match &self.library {
            Some((path, version)) => format!("ONNX Runtime {version} ({})", path.display()),
            None => format!("tract {TRACT}"),
        }
    }

    pub fn open(&self, graph: &Graph, threads: usize) -> Result<Net, String> {
        let builder = Session::builder(&self.environment).map_err(|error| error.to_string())?;
        let mut builder = builder.with_optimization_level(GraphOptimizationLevel::All).map_err(|e| e.to_string())?;
        // tract knows no further settings.
        if self.library.is_some() {
            builder = builder.with_intra_threads(threads).map_err(|error| error.to_string())?;
            builder = builder.with_memory_pattern(false).map_err(|error| error.to_string())?;
        }
        let session = match graph {
            Graph::Bytes(bytes) => builder.commit_from_memory(bytes),
            Graph::File(path) => builder.commit_from_file(path),
        };
        Net::of(session.map_err(|error| error.to_string())?)
    }
}

impl Net {
    fn of(session: Session) -> Result<Net, String> {
        let mut inputs = Vec::new();
        for outlet in session.inputs() {
            let input = match outlet.name() {
                "input_ids" => Input::Ids,
                "attention_mask" => Input::Mask,
                "token_type_ids" => Input::Types,
                other => return Err(format!("the graph wants an input {other:?}, which this program does not give")),
            };
            match outlet.dtype() {
                ValueType::Tensor { ty: TensorElementType::Int64, .. } => {}
                other => return Err(format!("the input {:?} is {other}, not 64-bit integers", outlet.name())),
            }
            inputs.push((outlet.name().to_owned(), input));
        }
        if !inputs.iter().any(|(_, input)| matches!(input, Input::Ids)) {
            return Err("the graph has no input \"input_ids\"".into());
        }
        let outputs = session.outputs().iter().map(|outlet| outlet.name().to_owned()).collect();
        Ok(Net { session, inputs, outputs })
    }

    pub fn outputs(&self) -> &[String] {
        &self.outputs
    }

    /// Runs one sequence, which must not be empty; `types` may be empty for zeros.
    pub fn run(&mut self, ids: &[i64], types: &[i64], output: &str) -> Result<Answer, String> {
        let text = |error: ort::Error| error.to_string();
        let shape = [1, ids.len()];
        let ones = vec![1_i64; ids.len()];
        let zeros = if types.is_empty() { vec![0_i64; ids.len()] } else { types.to_vec() };
        let mut values: Vec<(Cow<str>, SessionInputValue)> = Vec::with_capacity(self.inputs.len());
        // In the graph's own order each time: tract makes a plan for each order it sees.
        for (name, input) in &self.inputs {
            let data = match input {
                Input::Ids => ids,
                Input::Mask => &ones,
                Input::Types => &zeros,
            };
            values.push((name.as_str().into(), TensorRef::from_array_view((shape, data)).map_err(text)?.into()));
        }
        let answers = self.session.run(values).map_err(text)?;
        let answer = answers.get(output).ok_or_else(|| format!("the graph has no output {output:?}"))?;
        // An empty tensor of tract has no place in memory to read from.
        if answer.dtype().tensor_shape().is_none_or(|shape| shape.num_elements() == 0) {
            return Err("it gives no values".into());
        }
        let (shape, values) = answer.try_extract_tensor::<f32>().map_err(text)?;
        let shape = shape.iter().map(|n| usize::try_from(*n)).collect::<Result<_, _>>();
        Ok(Answer { shape: shape.map_err(|_| "a negative dimension".to_owned())?, values: values.to_vec() })
    }
}
