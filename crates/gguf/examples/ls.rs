//! Prints the metadata and tensors of a model: `cargo run -p sluice-gguf --example ls -- model.gguf`.

use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

use sluice_gguf::{Gguf, Value, escape};

/// Characters of a string to show; templates and licences are long.
const SHOWN: usize = 100;

fn main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1) else {
        let _ = writeln!(io::stderr(), "usage: ls MODEL.gguf");
        return ExitCode::from(2);
    };
    let model = match Gguf::open(Path::new(&path)) {
        Ok(model) => model,
        Err(e) => {
            let _ = writeln!(io::stderr(), "{e}");
            return ExitCode::FAILURE;
        }
    };
    match print(&model, &mut BufWriter::new(io::stdout().lock())) {
        // `ls model.gguf | head` is no failure.
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            let _ = writeln!(io::stderr(), "cannot write: {e}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

fn print(model: &Gguf, out: &mut impl Write) -> io::Result<()> {
    for path in model.paths() {
        writeln!(out, "{}", escape(path.as_os_str().as_encoded_bytes()))?;
    }
    let (version, alignment) = (model.version(), model.alignment());
    writeln!(out, "GGUF {version}, {} bytes, alignment {alignment}\n", model.file_bytes())?;
    for (key, value) in model.keys() {
        write!(out, "{:<6}  {} = ", value.ty(), escape(key.as_bytes()))?;
        match value {
            Value::String(bytes) => writeln!(out, "{}", escape(bytes).at_most(SHOWN))?,
            _ => writeln!(out, "{value}")?,
        }
    }
    writeln!(out)?;
    for tensor in model.tensors() {
        let dims: Vec<String> = tensor.dims().iter().map(u64::to_string).collect();
        writeln!(
            out,
            "{:<8} {:>16}  {:>12} bytes at {:>12} of file {}  {}",
            tensor.ty,
            dims.join(" × "),
            tensor.len,
            tensor.offset,
            tensor.file,
            escape(tensor.name.as_bytes())
        )?;
    }
    out.flush()
}
