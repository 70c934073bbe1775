//! Text that is never printed: passwords, keys, addresses with a login, client properties. Its
//! memory is cleared when it is dropped.

use super::invalid;
use serde::Deserialize;
use std::fmt;
use std::io::Read as _;
use zeroize::Zeroizing;

/// Bytes of a secret's file; a bundle of certificates has a quarter of it.
const SECRET_FILE_BYTES_MAX: u64 = 1024 * 1024;

#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Written")]
pub(crate) struct Secret(Zeroizing<Box<str>>);

/// A secret in the form that [`Sources`](super::source::Sources) gives it.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected text")]
enum Written {
    Text(String),
    File {
        #[serde(rename = "<file>")]
        file: String,
    },
}

impl Secret {
    pub(crate) fn new(text: impl Into<Box<str>>) -> Self {
        Self(Zeroizing::new(text.into()))
    }

    /// Returns the text for the client that needs it. Never print it.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl TryFrom<Written> for Secret {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let text = match written {
            Written::Text(text) => text,
            Written::File { file } => read(&file).map_err(|what| {
                let fix = "give the path of a file that contains only the secret";
                invalid(what, fix)
            })?,
        };
        if text.contains('\0') {
            return Err(invalid("the text contains a NUL character", "remove it"));
        }
        Ok(Self::new(text))
    }
}

/// Reads a file without the end of its last line.
fn read(file: &str) -> Result<String, String> {
    let mut text = Zeroizing::new(String::new());
    std::fs::File::open(file)
        .and_then(|file| {
            file.take(SECRET_FILE_BYTES_MAX + 1)
                .read_to_string(&mut text)
        })
        .map_err(|error| format!("the file {file} cannot be read: {error}"))?;
    if text.len() as u64 > SECRET_FILE_BYTES_MAX {
        return Err(format!("the file {file} is larger than 1MiB"));
    }
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let line = line.strip_suffix('\r').unwrap_or(line);
    if line.is_empty() {
        return Err(format!("the file {file} is empty"));
    }
    Ok(line.to_owned())
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_does_not_print_its_text() {
        let secret = Secret::new("hunter2");
        assert_eq!(
            format!("{secret:?} {:?}", Some(&secret)),
            "[secret] Some([secret])"
        );
        assert_eq!(secret.expose(), "hunter2");
    }
}
