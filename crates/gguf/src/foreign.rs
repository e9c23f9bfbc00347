//! Names what a file is when it is not a GGUF: people download pages, pointers and archives under that name every day.

use crate::error::{Error, ErrorKind, escape};

/// How many bytes of a file are enough to tell what it is: a web page may open with blank lines.
pub(crate) const SNIFF_BYTES: usize = 512;

/// Characters of a text file to show: an error message saved as a file says what happened within these.
const TEXT_CHARS: usize = 60;

/// The error for a file that begins with `head` (at most [`SNIFF_BYTES`]) and not with the GGUF magic.
pub(crate) fn describe(head: &[u8]) -> Error {
    let (what, advice) = recognise(head);
    Error::new(ErrorKind::Unsupported, format!("not a GGUF file: {what}; {advice}"))
}

const CONVERT: &str = "convert the model to GGUF";
const OLD: &str = "convert the model again with a current tool, or download it as GGUF";
const UNPACK: &str = "unpack it first";
const LFS: &str = "run `git lfs pull`, or download the file itself";

/// First bytes, what they mean, and what to do.
const PREFIXES: [(&[u8], &str, &str); 15] = [
    // GGML's magics are little-endian numbers, so their letters stand in reverse.
    (b"lmgg", "a legacy GGML file from before GGUF", OLD),
    (b"fmgg", "a legacy GGMF file (old GGML) from before GGUF", OLD),
    (b"tjgg", "a legacy GGJT file (old GGML) from before GGUF", OLD),
    (b"algg", "a legacy GGLA adapter (old GGML) from before GGUF", OLD),
    (b"FUGG", "GGUF backwards, as if big-endian", "convert it to little-endian"),
    (b"version https://git-lfs", "a Git LFS pointer, which stands for the real file", LFS),
    (b"PK\x03\x04", "a zip archive, such as a PyTorch checkpoint", CONVERT),
    (b"\x80\x02", "a Python pickle, such as an old PyTorch checkpoint", CONVERT),
    (b"\x89HDF", "an HDF5 file", CONVERT),
    (b"\x1f\x8b", "compressed with gzip", UNPACK),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd", UNPACK),
    (b"\xfd7zXZ", "compressed with xz", UNPACK),
    (b"BZh", "compressed with bzip2", UNPACK),
    (b"7z\xbc\xaf", "a 7-zip archive", UNPACK),
    (b"Rar!", "a RAR archive", UNPACK),
];

fn recognise(head: &[u8]) -> (String, &'static str) {
    if let Some((_, what, advice)) = PREFIXES.iter().find(|p| head.starts_with(p.0)) {
        return ((*what).to_owned(), advice);
    }
    // Eight bytes of header length, less than 16 MB, then the header, which is JSON.
    if matches!(head, [_, _, _, 0, 0, 0, 0, 0, b'{', ..]) {
        return ("a safetensors file".to_owned(), CONVERT);
    }
    if !head.is_empty() && head.iter().all(|&b| b == 0) {
        let what = "all zero at its beginning, as a preallocated or paused download is";
        return (what.to_owned(), "download it again");
    }
    text(head).unwrap_or_else(|| {
        let magic = &head[..head.len().min(4)];
        let what = format!("its magic is \"{}\" ({magic:02x?}), wanted \"GGUF\"", escape(magic));
        (what, "is this the right file?")
    })
}

/// Web pages, JSON errors and other text; `None` if it is not text.
fn text(head: &[u8]) -> Option<(String, &'static str)> {
    // A character may be cut in half at the end of what was read.
    let text = match str::from_utf8(head) {
        Ok(text) => text,
        Err(e) if e.error_len().is_none() => str::from_utf8(&head[..e.valid_up_to()]).ok()?,
        Err(_) => return None,
    };
    let text = text.trim_start_matches('\u{feff}').trim();
    if text.len() < 5 || text.contains(|c: char| c.is_control() && !c.is_whitespace()) {
        return None;
    }
    let start = escape(text.as_bytes()).at_most(TEXT_CHARS);
    let (what, advice) = if text.starts_with('<') {
        ("a web page (HTML or XML)", "the link was not the download link; get the file itself")
    } else if text.starts_with(['{', '[']) {
        ("JSON text, perhaps an error message from the server", "read it, and download the file again")
    } else {
        ("plain text, perhaps an error message from the server", "read it, and download the file again")
    };
    Some((format!("it looks like {what}: \"{start}\""), advice))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_what_people_download_by_mistake() {
        // The last byte looked at is the first half of a character.
        let long_page = format!("\n\n  <!DOCTYPE html>{}é", "x".repeat(492));
        let cases: [(&[u8], &str); 20] = [
            (b"lmgg\x00\x7d", "legacy GGML"),
            (b"fmgg\x01\0\0\0", "GGMF"),
            (b"tjgg\x03\0\0\0", "GGJT"),
            (b"FUGG\0\0\0\x03", "endian"),
            (b"PK\x03\x04\0\0", "zip"),
            (b"\x1f\x8b\x08\0", "gzip"),
            (b"\x28\xb5\x2f\xfd\0", "zstd"),
            (b"\x80\x02}q\0", "pickle"),
            (b"\x40\0\0\0\0\0\0\0{\"__metadata__\":{}}", "safetensors"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "git lfs pull"),
            (&[0; 512], "zero"),
            (&long_page.as_bytes()[..512], "web page"),
            (b"<?xml version=\"1.0\"?><Error/>", "web page"),
            (b"\xef\xbb\xbf{\"error\":\"Repository not found\"}", "JSON"),
            (b"Entry not found", "Entry not found"),
            (b"gguf\x03\0\0\0", "magic is \"gguf\""),
            (b"\x7fELF\x02\x01", "magic"),
            (b"GGU", "magic"),
            (b"\x1b[2Jhello there", "magic"),
            (b"", "magic"),
        ];
        for (head, want) in cases {
            let e = describe(head).to_string();
            assert!(e.contains(want) && e.starts_with("not a GGUF file"), "{e}");
            assert!(!e.contains(char::is_control), "{e:?}");
        }
    }
}
