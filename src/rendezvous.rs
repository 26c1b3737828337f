//! Where a server and those who look for it meet: a folder of the store, for its owner alone, with the token and the
//! endpoint file, and two locks.
//!
//! ```text
//! server.lock    held by the server for as long as it lives: an endpoint file without it is a dead server's
//! starting.lock  held by whoever starts a server, so that many who look at once start one
//! ```
//! Refuses: a token that others can read, and handing the token to a port that a dead server has left.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::wire::ServerStatus;

/// The folder in the data folder.
#[derive(Debug, Clone)]
pub struct Folder {
    path: PathBuf,
}

/// What a client shows. It stands in its file and in no argument, log or URL.
pub struct Token {
    text: String,
    hash: blake3::Hash,
}

/// The right to publish the endpoint of a store; it ends with the process.
pub struct Claim {
    folder: Folder,
    _lock: File,
}

/// The right to start a server, until dropped.
pub struct Starting {
    _lock: File,
}

impl Folder {
    pub fn of(data_dir: &Path) -> Folder {
        Folder { path: data_dir.join("server") }
    }

    pub fn token_file(&self) -> PathBuf {
        self.path.join("mcp.token")
    }

    fn endpoint_file(&self) -> PathBuf {
        self.path.join("endpoint.json")
    }

    fn server_lock(&self) -> PathBuf {
        self.path.join("server.lock")
    }

    /// Makes the folder if it is missing; refuses one that others may enter.
    fn secure(&self) -> Result<()> {
        let mut builder = DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        {
            // The data folder itself is made as every other folder is; only this one is closed.
            if let Some(parent) = self.path.parent() {
                fs::create_dir_all(parent).map_err(Error::io("create folder", parent))?;
            }
            std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        }
        builder.create(&self.path).map_err(Error::io("create folder", &self.path))?;
        require_private(&self.path, "700")
    }

    /// The token; the first server of a store makes it.
    pub fn token(&self) -> Result<Token> {
        self.secure()?;
        let _one_at_a_time = locked(&self.path.join("token.lock"))?;
        let path = self.token_file();
        if !path.exists() {
            let mut file = private_file(&path)?;
            let text = random_text::<32>()?;
            file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(Error::io("write", &path))?;
        }
        self.read_token()
    }

    /// The token that a server has made.
    pub fn read_token(&self) -> Result<Token> {
        require_private(&self.path, "700")?;
        let path = self.token_file();
        require_private(&path, "600")?;
        let text = fs::read_to_string(&path).map_err(Error::io("read", &path))?.trim().to_owned();
        if text.len() < 43 || !text.bytes().all(|byte| URL_SAFE.contains(&byte)) {
            let hint = format!("Remove {} and start the server again: it makes a new one.", path.display());
            return Err(Error::ConfigInvalid { path: Some(path), cause: "it holds no token".into(), hint: Some(hint) });
        }
        let hash = blake3::hash(text.as_bytes());
        Ok(Token { text, hash })
    }

    /// None where another server has it.
    pub fn claim(&self) -> Result<Option<Claim>> {
        self.secure()?;
        let path = self.server_lock();
        let file = open_lock(&path)?;
        let deadline = Instant::now() + PROBING;
        loop {
            match file.try_lock() {
                Ok(()) => {
                    // What a dead server has left behind must not pass for this one's.
                    fs::remove_file(self.endpoint_file()).ok();
                    return Ok(Some(Claim { folder: self.clone(), _lock: file }));
                }
                // Whoever looks for a server holds the lock for an instant.
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => std::thread::sleep(PAUSE),
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(Error::io("lock", &path)(error)),
            }
        }
    }

    /// The server that is running, if there is one.
    pub fn find(&self) -> Option<ServerStatus> {
        let text = fs::read_to_string(self.endpoint_file()).ok()?;
        // Where nobody holds the lock, the server died without removing its file.
        self.is_held().then(|| serde_json::from_str(&text).ok())?
    }

    /// True while a server of the store lives, whatever it has published.
    pub fn is_held(&self) -> bool {
        let lock = File::open(self.server_lock()).ok();
        lock.is_some_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// Where a server that has no terminal logs; what an earlier one has left is gone.
    pub fn log(&self) -> Result<File> {
        let path = self.path.join("server.log");
        fs::remove_file(&path).ok();
        private_file(&path)
    }

    /// Waits for the right to start a server, at most until the deadline.
    pub fn starting(&self, deadline: Instant) -> Result<Option<Starting>> {
        self.secure()?;
        let path = self.path.join("starting.lock");
        let file = open_lock(&path)?;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Some(Starting { _lock: file })),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => std::thread::sleep(PAUSE),
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(Error::io("lock", &path)(error)),
            }
        }
    }
}

/// How long a lock may be held by somebody who only looks.
const PROBING: Duration = Duration::from_millis(500);

const PAUSE: Duration = Duration::from_millis(5);

impl Token {
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Takes the same time whatever is given: hashes are compared, and in constant time.
    pub fn matches(&self, given: &str) -> bool {
        blake3::hash(given.as_bytes()) == self.hash
    }

    #[cfg(test)]
    pub fn of(text: &str) -> Token {
        Token { text: text.to_owned(), hash: blake3::hash(text.as_bytes()) }
    }
}

impl Claim {
    /// The file appears whole.
    pub fn publish(&self, status: &ServerStatus) -> Result<()> {
        let path = self.folder.endpoint_file();
        let draft = self.folder.path.join("endpoint.draft");
        let text = serde_json::to_string(status).map_err(|error| Error::Internal { cause: error.to_string() })?;
        fs::remove_file(&draft).ok();
        let mut file = private_file(&draft)?;
        file.write_all(text.as_bytes()).map_err(Error::io("write", &draft))?;
        fs::rename(&draft, &path).map_err(Error::io("write", &path))
    }

    /// The server is about to end.
    pub fn withdraw(&self) {
        // A file that is left behind is recognised by the free lock.
        fs::remove_file(self.folder.endpoint_file()).ok();
    }
}

/// Equal for configurations that give equal answers.
pub fn fingerprint(config: &Config) -> String {
    let answers = Config { readonly: false, warnings: Vec::new(), file: None, ..config.clone() };
    blake3::hash(format!("{answers:?}").as_bytes()).to_hex()[..32].to_owned()
}

/// `N` random bytes of the system as text that needs no quoting anywhere.
pub fn random_text<const N: usize>() -> Result<String> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| Error::Internal { cause: format!("no random bytes: {error}") })?;
    Ok(base64(&bytes, URL_SAFE))
}

pub const URL_SAFE: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
pub const STANDARD: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Without padding.
pub fn base64(bytes: &[u8], alphabet: &[u8; 64]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        (0..=group.len()).for_each(|place| text.push(alphabet[(bits >> (18 - 6 * place) & 63) as usize].into()));
    }
    text
}

fn private_file(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map_err(Error::io("create", path))
}

fn open_lock(path: &Path) -> Result<File> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    file.map_err(Error::io("open lock", path))
}

fn locked(path: &Path) -> Result<File> {
    let file = open_lock(path)?;
    file.lock().map_err(Error::io("lock", path))?;
    Ok(file)
}

/// Elsewhere the user's own folders are closed to others by the system.
#[cfg_attr(not(unix), allow(unused_variables, reason = "only Unix has modes"))]
fn require_private(path: &Path, mode: &str) -> Result<()> {
    #[cfg(unix)]
    {
        let found = fs::metadata(path).map_err(Error::io("read", path))?;
        let found = std::os::unix::fs::PermissionsExt::mode(&found.permissions()) & 0o777;
        if found & 0o077 != 0 {
            let cause = format!("its mode is {found:o}, others may read it; the token must be its owner's alone");
            let hint = format!("Run `chmod {mode} {}`, or remove it: it is made anew.", path.display());
            return Err(Error::ConfigInvalid { path: Some(path.to_owned()), cause, hint: Some(hint) });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_standard() {
        for (bytes, expected) in
            [("", ""), ("f", "Zg"), ("fo", "Zm8"), ("foo", "Zm9v"), ("foob", "Zm9vYg"), ("fooba", "Zm9vYmE")]
        {
            assert_eq!(base64(bytes.as_bytes(), STANDARD), expected);
        }
        assert_eq!(base64(&[0xfb, 0xff, 0xfe], STANDARD), "+//+");
        assert_eq!(base64(&[0xfb, 0xff, 0xfe], URL_SAFE), "-__-");
    }

    #[test]
    fn tokens_are_long_and_differ() {
        let (one, other) = (random_text::<32>().unwrap(), random_text::<32>().unwrap());
        assert_eq!((one.len(), other.len()), (43, 43));
        assert_ne!(one, other);
        let token = Token::of(&one);
        assert!(token.matches(&one));
        for wrong in ["", &one[..42], &other, &format!("{one}x"), &one.to_uppercase()] {
            assert!(!token.matches(wrong), "{wrong}");
        }
    }
}
