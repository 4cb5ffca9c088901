// What the fuzz targets have in common. A target reads bytes that libFuzzer
// makes as a file: it must read them, or refuse them with luna's own error
// that names the file.
#pragma once

#include <c10/util/Exception.h>
#include <stdlib.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace luna::fuzz {

/// Ends the process where a property does not hold: libFuzzer keeps the input.
inline void require(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what.c_str());
  abort();
}

/// A folder of this process, in memory where the system has that, removed at
/// the end.
inline const std::filesystem::path& folder() {
  struct Folder {
    std::filesystem::path path;
    Folder() {
      const bool shm = std::filesystem::is_directory("/dev/shm");
      std::string name =
          (shm ? "/dev/shm" : std::filesystem::temp_directory_path().string()) +
          "/luna_fuzz_XXXXXX";
      require(mkdtemp(name.data()) != nullptr, "a temporary folder");
      path = name;
    }
    ~Folder() { std::filesystem::remove_all(path); }
  };
  static const Folder made;
  return made.path;
}

/// Writes a file into the folder; its path.
inline std::string put(const std::string& name, std::string_view bytes) {
  const std::string path = (folder() / name).string();
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

/// Any other exception ends the process.
template <class Read>
void read_or_refuse(const std::string& path, Read&& read) {
  try {
    read();
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    require(message.find(path) != std::string::npos,
            path + " in the message: " + message);
  }
}

/// The input without its first byte, which chooses among `kinds`.
struct Choice {
  int kind;
  std::string_view bytes;
};
inline Choice choose(const uint8_t* data, size_t size, int kinds) {
  if (size == 0) return {0, {}};
  return {data[0] % kinds, {reinterpret_cast<const char*>(data) + 1, size - 1}};
}

}  // namespace luna::fuzz
