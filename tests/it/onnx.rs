//! Model folders for tests, made here byte by byte: a table of vectors that token ids are looked up in, and a tokenizer
//! of a few words.

use std::path::Path;

/// Words of the vocabulary by their ids; others are 0.
pub const WORDS: [&str; 6] = ["[UNK]", "stop", "server", "halt", "daemon", "soup"];

/// The graph's output: a vector a token, or their mean.
#[derive(Clone, Copy, PartialEq)]
pub enum Output {
    Tokens,
    Mean,
}

/// A folder with model.onnx, tokenizer.json and, unless it is empty, model.toml. `table` holds the words' vectors.
pub fn folder(path: &Path, table: &[Vec<f32>], output: Output, description: &str) {
    std::fs::create_dir_all(path).expect("a folder");
    std::fs::write(path.join("model.onnx"), model(table, output)).expect("a model");
    std::fs::write(path.join("tokenizer.json"), tokenizer()).expect("a tokenizer");
    if !description.is_empty() {
        std::fs::write(path.join("model.toml"), description).expect("a description");
    }
}

fn tokenizer() -> String {
    let words: Vec<String> = WORDS.iter().enumerate().map(|(id, word)| format!("\"{word}\":{id}")).collect();
    format!(
        r#"{{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,
            "pre_tokenizer":{{"type":"Whitespace"}},"post_processor":null,"decoder":null,
            "model":{{"type":"WordLevel","vocab":{{{}}},"unk_token":"[UNK]"}}}}"#,
        words.join(",")
    )
}

/// `input_ids` → Gather from the table → the vectors, or ReduceMean of them.
fn model(table: &[Vec<f32>], output: Output) -> Vec<u8> {
    let columns = table[0].len();
    let values: Vec<u8> = table.iter().flatten().flat_map(|value| value.to_le_bytes()).collect();
    let weights = message(&[
        Field::Number(1, table.len() as u64),
        Field::Number(1, columns as u64),
        Field::Number(2, FLOAT),
        Field::Bytes(8, b"table".to_vec()),
        Field::Bytes(9, values),
    ]);
    let gather =
        node("Gather", &["table", "input_ids"], if output == Output::Tokens { "out" } else { "found" }, vec![]);
    let axes = Field::Bytes(
        5,
        message(&[Field::Bytes(1, b"axes".to_vec()), Field::Number(8, 1), Field::Number(20, ATTRIBUTE_INTS)]),
    );
    let keep = Field::Bytes(
        5,
        message(&[Field::Bytes(1, b"keepdims".to_vec()), Field::Number(3, 0), Field::Number(20, ATTRIBUTE_INT)]),
    );
    let mean = node("ReduceMean", &["found"], "out", vec![axes, keep]);
    let mut graph = vec![Field::Bytes(1, gather)];
    if output == Output::Mean {
        graph.push(Field::Bytes(1, mean));
    }
    let shape: &[Dimension] = match output {
        Output::Tokens => &[Dimension::Named("b"), Dimension::Named("s"), Dimension::Of(columns as u64)],
        Output::Mean => &[Dimension::Named("b"), Dimension::Of(columns as u64)],
    };
    graph.extend([
        Field::Bytes(2, b"tiny".to_vec()),
        Field::Bytes(5, weights),
        Field::Bytes(11, value("input_ids", INT64, &[Dimension::Named("b"), Dimension::Named("s")])),
        Field::Bytes(12, value("out", FLOAT, shape)),
    ]);
    let opset = message(&[Field::Bytes(1, vec![]), Field::Number(2, 13)]);
    message(&[Field::Number(1, 8), Field::Bytes(7, message(&graph)), Field::Bytes(8, opset)])
}

const FLOAT: u64 = 1;
const INT64: u64 = 7;
const ATTRIBUTE_INT: u64 = 2;
const ATTRIBUTE_INTS: u64 = 7;

enum Dimension {
    Of(u64),
    Named(&'static str),
}

fn node(operator: &str, inputs: &[&str], output: &str, attributes: Vec<Field>) -> Vec<u8> {
    let mut fields: Vec<Field> = inputs.iter().map(|input| Field::Bytes(1, input.as_bytes().to_vec())).collect();
    fields.push(Field::Bytes(2, output.as_bytes().to_vec()));
    fields.push(Field::Bytes(4, operator.as_bytes().to_vec()));
    fields.extend(attributes);
    message(&fields)
}

fn value(name: &str, element: u64, shape: &[Dimension]) -> Vec<u8> {
    let dimensions: Vec<Field> = shape
        .iter()
        .map(|dimension| match dimension {
            Dimension::Of(size) => Field::Bytes(1, message(&[Field::Number(1, *size)])),
            Dimension::Named(name) => Field::Bytes(1, message(&[Field::Bytes(2, name.as_bytes().to_vec())])),
        })
        .collect();
    let tensor = message(&[Field::Number(1, element), Field::Bytes(2, message(&dimensions))]);
    message(&[Field::Bytes(1, name.as_bytes().to_vec()), Field::Bytes(2, message(&[Field::Bytes(1, tensor)]))])
}

/// A field of a protobuf message: its number and its value.
enum Field {
    Number(u64, u64),
    Bytes(u64, Vec<u8>),
}

fn message(fields: &[Field]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for field in fields {
        match field {
            Field::Number(number, value) => {
                varint(&mut bytes, number << 3);
                varint(&mut bytes, *value);
            }
            Field::Bytes(number, value) => {
                varint(&mut bytes, number << 3 | 2);
                varint(&mut bytes, value.len() as u64);
                bytes.extend_from_slice(value);
            }
        }
    }
    bytes
}

fn varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}
