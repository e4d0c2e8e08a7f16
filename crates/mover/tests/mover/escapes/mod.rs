//! No inode outside of a root is changed, and nothing outside is read, whatever lies in the root, whatever the peer says,
//! and whatever another program does meanwhile: links, hard links, planted journals and temporary files, and the classes of
//! what rsync 3.4.0 to 3.5 had to mend (symlinks and parent directories exchanged during a transfer, on both sides).

mod messages;
mod names;
mod planted;
mod races;
mod world;
