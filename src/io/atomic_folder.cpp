#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <filesystem>

#include "io/atomic_names.h"
#include "io/system_calls.h"
#include "luna/io/atomic.h"

namespace luna::io {
namespace {

namespace fs = std::filesystem;

std::string without_trailing_slash(const std::string& path) {
  const fs::path p(path);
  return (p.has_filename() ? p : p.parent_path()).string();
}

bool exists(const std::string& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

void sync_tree(const std::string& folder, const std::string& user_path) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_symlink()) continue;
    if (entry.is_directory()) {
      sync_tree(entry.path().string(), user_path);
    } else if (entry.is_regular_file()) {
      system::sync_path(entry.path().string(), user_path);
    }
  }
  system::sync_path(folder, user_path);
}

/// Puts the folder `fresh` in the place of `path`, which exists. Returns where
/// the old one is now.
std::string replace(const std::string& fresh, const std::string& path) {
  if (system::exchange(fresh, path, path)) return fresh;
  const std::string aside = aside_name(path);
  system::rename(path, aside, path);
  try {
    system::rename(fresh, path, path);
  } catch (...) {
    system::rename(aside, path, path);
    throw;
  }
  return aside;
}

}  // namespace

void make_folders_above(const std::string& path) {
  const fs::path above = fs::path(without_trailing_slash(path)).parent_path();
  if (above.empty()) return;
  std::error_code error;
  fs::create_directories(above, error);
  if (error) system::fail("cannot make", above.string(), error.value());
}

AtomicFolder::AtomicFolder(const std::string& path)
    : path_(without_trailing_slash(path)), temporary_(part_name(path_)) {
  std::error_code error;
  const fs::file_status status = fs::status(path_, error);
  if (fs::exists(status) && !fs::is_directory(status)) {
    system::fail("cannot write", path_, ENOTDIR);
  }
  lock_ = system::make_folder(temporary_, path_);
}

AtomicFolder::~AtomicFolder() {
  if (!committed_) system::remove_all(temporary_);
  ::close(lock_);
}

std::string AtomicFolder::file(const std::string& name) const {
  return (fs::path(temporary_) / name).string();
}

void AtomicFolder::commit() {
  TORCH_CHECK(!committed_, "AtomicFolder: ", path_, " is committed already");
  sync_tree(temporary_, path_);
  std::string old;
  if (exists(path_)) {
    old = replace(temporary_, path_);
  } else {
    system::rename(temporary_, path_, path_);
  }
  committed_ = true;
  system::sync_path(parent_of(path_), path_);
  if (!old.empty()) system::remove_all(old);
}

void remove_folder(const std::string& path) {
  const std::string target = without_trailing_slash(path);
  if (!exists(target)) return;
  // As a part, not as one moved aside: nobody shall bring it back.
  const std::string doomed = part_name(target);
  system::rename(target, doomed, target);
  system::remove_all(doomed);
}

bool recover(const std::string& path) {
  const std::string target = without_trailing_slash(path);
  const std::string parent = parent_of(target);
  if (exists(target) || !exists(parent)) return false;
  const std::string name = fs::path(target).filename().string();
  for (const auto& entry : fs::directory_iterator(parent)) {
    const auto leftover = parse_leftover(entry.path().filename().string());
    if (!leftover || !leftover->moved_aside || leftover->target != name) {
      continue;
    }
    system::rename(entry.path().string(), target, target);
    system::sync_path(parent, target);
    return true;
  }
  return false;
}

std::vector<std::string> remove_leftovers(const std::string& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (is_leftover(entry.path().filename().string())) {
      found.push_back(entry.path());
    }
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    system::fail("cannot read", folder, error.value());
  }
  std::vector<std::string> removed;
  for (const fs::path& path : found) {
    const std::string name = path.filename().string();
    if (!system::unlocked(path.string())) continue;
    const LeftoverName leftover = *parse_leftover(name);
    if (leftover.moved_aside &&
        recover((path.parent_path() / leftover.target).string())) {
      continue;
    }
    system::remove_all(path.string());
    removed.push_back(name);
  }
  return removed;
}

}  // namespace luna::io
