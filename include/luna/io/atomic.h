#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

// Files and folders that are there whole or not at all: written beside under
// a name of their own, synced, renamed, and the folder synced. What a killed
// process left beside has a name that is_leftover knows; remove_leftovers
// removes it. All errors name the path and the system's reason.

namespace luna::io {

/// Where the bytes of a file go; writes are buffered.
class FileWriter {
 public:
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;
  virtual ~FileWriter() = default;
  virtual void write(const void* data, size_t bytes) = 0;
  void write(std::string_view text) { write(text.data(), text.size()); }

 protected:
  FileWriter() = default;
};

using WriteFunction = std::function<void(FileWriter&)>;

/// Makes or replaces the file `path` by what `write` writes. If anything
/// fails or `write` throws, what was at `path` is untouched and nothing new
/// stays. A device or pipe (/dev/stdout) is written to directly.
void write_file_atomically(const std::string& path, const WriteFunction& write);

/// A folder in the making.
///
///     AtomicFolder folder("run/checkpoints/step-00000500");
///     write_safetensors(folder.file("model.safetensors"), tensors);
///     write_text(folder.file("state.json"), state);
///     folder.commit();
///
/// Without commit() the destructor removes it. A folder of that name that is
/// there already is replaced: exchanged in one step where the file system can,
/// else moved aside first (see recover).
class AtomicFolder {
 public:
  explicit AtomicFolder(const std::string& path);
  ~AtomicFolder();
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  /// Where to write the file `name` before commit().
  std::string file(const std::string& name) const;
  /// Syncs all that was written, whoever wrote it, and puts it in place. After
  /// an error the earlier folder is in place, or the new one if only the last
  /// sync failed.
  void commit();

 private:
  std::string path_;
  std::string temporary_;
  int lock_ = -1;  ///< held while the folder is written; see remove_leftovers
  bool committed_ = false;
};

/// Makes the folders above `path`, which may end in a slash.
void make_folders_above(const std::string& path);

/// Removes a folder and all in it, in a way that cannot leave half of it under
/// its name: it is renamed first. No error if it is not there.
void remove_folder(const std::string& path);

/// Whether the name (without folders) is one of a file or folder in the
/// making, or of one on its way out.
bool is_leftover(const std::string& name);

/// If `path` is not there but was moved aside by a process killed while it
/// replaced it, moves it back. True if it did.
bool recover(const std::string& path);

/// Recovers what is to be recovered in `folder`, removes the other leftovers
/// of processes that no longer run, and returns the names it removed. Those
/// of running processes stay: they hold a lock on what they write.
std::vector<std::string> remove_leftovers(const std::string& folder);

}  // namespace luna::io
