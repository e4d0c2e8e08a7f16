//! No inode outside of a root is changed or read, whatever the root contains, the peer sends, or another
//! program does at the same time: links, hard links, planted journals and temporary files, and the
//! vulnerability classes fixed in rsync 3.4.0 to 3.5 (symlinks and parent directories exchanged during a
//! transfer, on both sides).

mod messages;
mod names;
mod planted;
mod races;
mod world;
