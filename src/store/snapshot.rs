//! The file that the memory store's state outlives its process in.
//!
//! A head with a version, the [records](Memory::write_records), and a checksum over both. It is written beside its place
//! and then put there in one step: whoever reads it has the whole of the old one or of the new one.
//!
//! Keys are hashes, and only their secret finds them again. Where the operator has set one, the file holds no more than
//! its [id](Secret::id); where the process had drawn its own, the file holds the secret, and nobody but its owner may
//! read it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::memory::{Memory, Recalled, Settings};
use crate::clock::{Clock, Micros};
use crate::identity::Secret;

const MAGIC: [u8; 8] = *b"tollsnap";
const VERSION: u32 = 1;
const CHECKSUM: usize = blake3::OUT_LEN;
/// Below this, two clocks agree: what is left of a clock that is being slewed is no step.
const SAME: u64 = 100_000;

/// Why there is no state to start with.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// There is no file.
    #[error("there is none")]
    Absent,
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    /// It is something else.
    #[error("it is not a snapshot")]
    Foreign,
    /// Another release wrote it.
    #[error("it is of version {0}, and this gateway reads version {VERSION}")]
    Version(u32),
    /// It is not what was written.
    #[error("it is damaged")]
    Damaged,
    /// Its keys cannot be found with the secret that there is.
    #[error("its keys were hashed with another secret")]
    OtherSecret,
}

/// A store that goes on where one stopped.
#[derive(Debug)]
pub struct Restored {
    /// The store.
    pub memory: Memory,
    /// The secret that its keys are hashed with, if the file held it.
    pub secret: Option<Secret>,
    /// What became of the keys.
    pub recalled: Recalled,
    /// How long ago the file was written.
    pub age: Micros,
}

/// How the keys of a store are hashed.
#[derive(Clone, Copy, Debug)]
pub enum Hashed<'a> {
    /// With a secret that the operator has set, and will set again.
    Configured(&'a Secret),
    /// With a secret that only the file keeps.
    Own(&'a Secret),
}

/// What a snapshot says of itself.
struct Head {
    /// The wall clock when it was written.
    wall: Micros,
    /// The store's clock then.
    clock: Micros,
    id: [u8; 32],
    secret: Option<Secret>,
}

/// Writes a snapshot of `memory` at the instant `wall` of the wall clock, and returns how many keys are in it.
///
/// # Errors
/// It cannot be written; the one that was there is as it was.
pub fn save(path: &Path, memory: &Memory, hashed: Hashed<'_>, wall: Micros) -> io::Result<usize> {
    let fresh = beside(path);
    let written = write(&fresh, memory, hashed, wall).and_then(|keys| {
        fs::rename(&fresh, path)?;
        // The folder's own entry is on disk only after this.
        File::open(folder(path))?.sync_all()?;
        Ok(keys)
    });
    if written.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    written
}

/// The store that a snapshot describes, on `clock`. Ages count from then to now on the wall clock, which `clock` has been
/// set to; one that ran back counts as none. `configured` is the secret that the operator has set.
///
/// # Errors
/// There is nothing to go on from.
pub fn load(
    path: &Path,
    settings: Settings,
    configured: Option<&Secret>,
    clock: Clock,
) -> Result<Restored, SnapshotError> {
    let mut input = open(path)?;
    let head = Head::read(&mut input)?;
    let known = match configured {
        Some(secret) => secret.id() == head.id,
        None => head.secret.is_some(),
    };
    if !known {
        return Err(SnapshotError::OtherSecret);
    }
    let (wall, memory) = (clock.now(), Memory::new(settings, clock));
    let recalled = memory.read_records(&mut input, head.shift(wall));
    let recalled = recalled.map_err(|_| SnapshotError::Damaged)?;
    if input.limit() > 0 {
        return Err(SnapshotError::Damaged);
    }
    Ok(Restored {
        memory,
        secret: head.secret.filter(|_| configured.is_none()),
        recalled,
        age: wall.since(head.wall),
    })
}

/// The secret that a snapshot holds.
///
/// # Errors
/// There is none to read it from.
pub fn secret(path: &Path) -> Result<Option<Secret>, SnapshotError> {
    Ok(Head::read(&mut open(path)?)?.secret)
}

/// Whether a snapshot could be written there, as far as that can be said without writing one.
///
/// # Errors
/// There is no such folder.
pub fn writable(path: &Path) -> io::Result<()> {
    match fs::metadata(folder(path))?.is_dir() {
        true => Ok(()),
        false => Err(io::ErrorKind::NotADirectory.into()),
    }
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// The name that a snapshot has until it is whole.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    path.with_file_name(name)
}

fn write(fresh: &Path, memory: &Memory, hashed: Hashed<'_>, wall: Micros) -> io::Result<usize> {
    // What an earlier end has left there may belong to others, or be a link.
    match fs::remove_file(fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(fresh)?;
    let mut out = Summed {
        out: BufWriter::new(file),
        sum: blake3::Hasher::new(),
    };
    Head::of(memory.clock(), hashed, wall).write(&mut out)?;
    let keys = memory.write_records(&mut out)?;
    let sum = out.sum.finalize();
    out.out.write_all(sum.as_bytes())?;
    out.out
        .into_inner()
        .map_err(io::IntoInnerError::into_error)?
        .sync_all()?;
    Ok(keys)
}

/// Opens a snapshot whose head and checksum are right: what can be read is all but the checksum.
fn open(path: &Path) -> Result<io::Take<BufReader<File>>, SnapshotError> {
    let absent = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => SnapshotError::Absent,
        _ => error.into(),
    };
    let metadata = fs::metadata(path).map_err(absent)?;
    // A pipe would be waited for, a device read for ever.
    if !metadata.is_file() {
        return Err(SnapshotError::Foreign);
    }
    let mut file = BufReader::new(File::open(path).map_err(absent)?);
    let mut start = [0; MAGIC.len() + size_of::<u32>()];
    file.read_exact(&mut start).map_err(|_| SnapshotError::Foreign)?;
    let (magic, version) = start.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err(SnapshotError::Foreign);
    }
    let version = version
        .iter()
        .rev()
        .fold(0, |all, byte| all << 8 | u32::from(*byte));
    if version != VERSION {
        return Err(SnapshotError::Version(version));
    }
    let whole = file.get_ref().metadata()?.len();
    let checksum = u64::try_from(CHECKSUM).unwrap_or_default();
    let Some(summed) = whole.checked_sub(checksum) else {
        return Err(SnapshotError::Damaged);
    };
    file.seek(SeekFrom::Start(0))?;
    let mut sum = Summed {
        out: io::sink(),
        sum: blake3::Hasher::new(),
    };
    io::copy(&mut file.by_ref().take(summed), &mut sum)?;
    let mut told = [0; CHECKSUM];
    file.read_exact(&mut told).map_err(|_| SnapshotError::Damaged)?;
    if sum.sum.finalize() != told {
        return Err(SnapshotError::Damaged);
    }
    let start = u64::try_from(start.len()).unwrap_or_default();
    file.seek(SeekFrom::Start(start))?;
    Ok(file.take(summed.saturating_sub(start)))
}

impl Head {
    fn of(clock: Micros, hashed: Hashed<'_>, wall: Micros) -> Self {
        let (secret, kept) = match hashed {
            Hashed::Configured(secret) => (secret, None),
            Hashed::Own(secret) => (secret, Some(secret.clone())),
        };
        Self {
            wall,
            clock,
            id: secret.id(),
            secret: kept,
        }
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(&MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        out.write_all(&self.wall.0.to_le_bytes())?;
        out.write_all(&self.clock.0.to_le_bytes())?;
        out.write_all(&self.id)?;
        match &self.secret {
            Some(secret) => {
                out.write_all(&[1])?;
                out.write_all(secret.expose())
            }
            None => out.write_all(&[0]),
        }
    }

    /// What follows the version.
    fn read(input: &mut impl Read) -> Result<Self, SnapshotError> {
        let damaged = |_| SnapshotError::Damaged;
        let wall = u64::from_le_bytes(bytes(input).map_err(damaged)?);
        let clock = u64::from_le_bytes(bytes(input).map_err(damaged)?);
        let id = bytes(input).map_err(damaged)?;
        let secret = match bytes(input).map_err(damaged)? {
            [0] => None,
            [1] => Some(Secret::from_bytes(bytes(input).map_err(damaged)?)),
            [_] => return Err(SnapshotError::Damaged),
        };
        Ok(Self {
            wall: Micros(wall),
            clock: Micros(clock),
            id,
            secret,
        })
    }

    /// By how much the instants of the records move, so that at `wall` each is as long ago as it was when they were
    /// written and as the wall clock has moved since: the store's clock then may have been another than the wall's.
    fn shift(&self, wall: Micros) -> i64 {
        let stands = self.clock.plus(wall.since(self.wall));
        let by = stands.0.abs_diff(wall.0);
        let by = i64::try_from(by).ok().filter(|_| by >= SAME).unwrap_or_default();
        if wall > stands { by } else { -by }
    }
}

/// Writes, and sums up what is written.
struct Summed<W> {
    out: W,
    sum: blake3::Hasher,
}

impl<W: Write> Write for Summed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.sum.update(bytes.get(..written).unwrap_or_default());
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn bytes<const N: usize>(input: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}
