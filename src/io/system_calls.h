// The system calls of the save path, each behind a fault point
// (luna/io/faults.h). Errors throw with the path that the user named.
#pragma once

#include <cstddef>
#include <string>

namespace luna::io::system {

/// "cannot write PATH: reason", for an error number.
[[noreturn]] void fail(const char* what, const std::string& path, int error);

/// A new file, locked so that remove_leftovers knows it is in use.
int create(const std::string& file, const std::string& user_path);
/// For devices and pipes.
int open_existing(const std::string& file);
/// The fault point of write: half of the bytes are written before it acts.
int fault_point_of_write(int descriptor, const void* data, size_t bytes);
void write(int descriptor, const void* data, size_t bytes,
           const std::string& user_path);
void sync(int descriptor, const std::string& user_path);
/// Opens, syncs and closes a file or folder.
void sync_path(const std::string& path, const std::string& user_path);
void rename(const std::string& from, const std::string& to,
            const std::string& user_path);
/// Exchanges two names in one step; false if the file system cannot.
bool exchange(const std::string& a, const std::string& b,
              const std::string& user_path);
/// A new folder, opened and locked.
int make_folder(const std::string& path, const std::string& user_path);
/// A file or a folder with all in it; what cannot be removed stays, quietly:
/// remove_leftovers tries again.
void remove_all(const std::string& path);

/// Whether nobody holds a lock on the file or folder.
bool unlocked(const std::string& path);

/// Closes what it holds.
class Descriptor {
 public:
  explicit Descriptor(int descriptor) : descriptor_(descriptor) {}
  ~Descriptor();
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

}  // namespace luna::io::system
