// Safetensors cut short, damaged at random, or made to take memory.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <random>

#include "io/safetensors_bytes.h"
#include "luna/io/safetensors.h"
#include "luna/io/text_file.h"
#include "support/errors.h"
#include "support/temporary_folder.h"

namespace luna::io {
namespace {

using luna::testing::expect_error;

class DamagedSafetensors : public luna::testing::FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    x_ = path("x.safetensors");
  }
  /// Without syncing, which thousands of files would wait for.
  void put(const std::string& bytes) const {
    std::ofstream(x_, std::ios::binary) << bytes;
  }
  std::string x_;
};

std::string small_file(const std::string& path) {
  write_safetensors(path,
                    {{"weight", at::arange(6).view({2, 3})},
                     {"bias", at::ones({3}, at::kBFloat16)},
                     {"flag", at::ones({1}, at::kBool)}},
                    {{"format", "pt"}});
  return read_text(path);
}

TEST_F(DamagedSafetensors, EveryTruncationIsFound) {
  const std::string whole = small_file(x_);
  for (size_t length = 0; length < whole.size(); ++length) {
    put(whole.substr(0, length));
    SCOPED_TRACE(length);
    expect_error<c10::ValueError>([&] { Safetensors::open(x_); }, {x_});
  }
  put(whole + " ");
  expect_error<c10::ValueError>([&] { Safetensors::open(x_); },
                                {x_, "file size"});
}

/// Opens and reads everything; an error must name the file.
bool survives(const std::string& path) {
  try {
    const Safetensors file = Safetensors::open(path);
    for (const TensorEntry& entry : file.entries()) {
      const at::Tensor tensor = file.tensor(entry.name);
      EXPECT_EQ(static_cast<int64_t>(tensor.nbytes()), entry.bytes);
      volatile char sink = 0;
      const char* data = static_cast<const char*>(tensor.const_data_ptr());
      for (int64_t i = 0; i < entry.bytes; ++i) sink = sink ^ data[i];
    }
    return true;
  } catch (const c10::ValueError& error) {
    const std::string message = error.what_without_backtrace();
    EXPECT_NE(message.find(path), std::string::npos) << message;
    return false;
  }
}

TEST_F(DamagedSafetensors, BitFlipsOfTheHeaderAreRefusedOrHarmless) {
  const std::string whole = small_file(x_);
  const size_t header = static_cast<unsigned char>(whole[0]) +
                        static_cast<unsigned char>(whole[1]) * 256;
  size_t refused = 0;
  size_t tried = 0;
  // every bit of the size, then every third, which reaches every byte
  for (size_t bit = 0; bit < 8 * (8 + header); bit += bit < 64 ? 1 : 3) {
    std::string changed = whole;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ 1 << bit % 8);
    put(changed);
    refused += !survives(x_);
    ++tried;
  }
  // what is left are other letters in names and metadata
  EXPECT_GT(refused, tried / 2);
}

TEST_F(DamagedSafetensors, RandomDamageNeverCrashes) {
  const std::string whole = small_file(x_);
  const std::string pieces[] = {
      "{",          "}",          "[",
      "]",          ",",          ":",
      "\"",         "\\u00",      "18446744073709551615",
      "-1",         "null",       "1e999",
      "\"dtype\":", "\"shape\":", "[0,0]",
      "\xf0"};
  std::mt19937_64 random(7);
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(1500);
  int tried = 0;
  while (std::chrono::steady_clock::now() < end && tried < 20'000) {
    std::string changed = whole;
    for (uint64_t n = 1 + random() % 4; n > 0; --n) {
      const size_t at = random() % changed.size();
      switch (random() % 4) {
        case 0:
          changed[at] = static_cast<char>(random());
          break;
        case 1:
          changed.erase(at, 1 + random() % 8);
          break;
        case 2:
          changed.insert(at, pieces[random() % std::size(pieces)]);
          break;
        default:
          changed.insert(at, changed.substr(random() % changed.size(), 40));
      }
    }
    // keep the size right often, so that the parser sees the rest
    if (random() % 2 == 0 && changed.size() > 32) {
      changed.replace(0, 8, size_bytes(changed.size() - 8 - 55));
    }
    put(changed);
    survives(x_);
    ++tried;
  }
  EXPECT_GT(tried, 100);
}

#ifndef __SANITIZE_ADDRESS__  // which multiplies what malloc takes
/// Peak growth of a child's memory while it opens the file, in bytes.
int64_t memory_to_open(const std::string& path) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    std::ofstream("/proc/self/clear_refs") << 5;  // peak = now
    const auto field = [](const std::string& name) {
      std::ifstream status("/proc/self/status");
      for (std::string line; std::getline(status, line);) {
        if (line.starts_with(name)) {
          return std::stoll(line.substr(line.find(':') + 1)) * 1024;
        }
      }
      return 0LL;
    };
    const int64_t before = field("VmRSS");
    try {
      Safetensors::open(path);
    } catch (const std::exception&) {
    }
    const int64_t grown = field("VmHWM") - before;
    const bool sent = write(ends[1], &grown, sizeof grown) == sizeof grown;
    _exit(sent ? 0 : 1);
  }
  int64_t grown = -1;
  EXPECT_EQ(read(ends[0], &grown, sizeof grown),
            static_cast<ssize_t>(sizeof grown));
  close(ends[0]);
  close(ends[1]);
  int status = 0;
  waitpid(child, &status, 0);
  return grown;
}

TEST_F(DamagedSafetensors, MemoryIsBoundedByTheFile) {
  const auto repeated = [](const std::string& entry) {
    std::string object = "{";
    for (int i = 0; object.size() < 25'000'000; ++i) {
      object += '"' + std::to_string(i) + "\":" + entry + ',';
    }
    object.back() = '}';
    return object;
  };
  const auto metadata = [](const std::string& object) {
    return R"({"__metadata__":)" + object + "}";
  };
  constexpr size_t kLong = 60'000'000;
  constexpr size_t kLongest = (size_t{4} << 20) - 1;  // of a string that passes
  std::string strings = "{";
  for (const char key : {'a', 'b', 'c', 'd', 'e'}) {
    strings +=
        std::string("\"") + key + "\":\"" + std::string(kLongest, 'x') + "\",";
  }
  strings.back() = '}';

  const std::vector<std::function<std::string()>> headers = {
      [&] {
        return repeated(R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})");
      },
      [&] { return metadata(repeated(R"("")")); },
      [&] { return metadata(strings); },
      [&] { return "{\"" + std::string(kLong, 'x') + "\":{}}"; },
      [&] { return R"({"a":{"shape":[)" + std::string(kLong, '1') + "]}}"; },
      [&] { return R"({"a":)" + std::string(kLong, '['); },
      [&] { return "{" + std::string(kLong, ' ') + "}"; },
  };
  for (size_t i = 0; i < headers.size(); ++i) {
    const std::string file = file_of(headers[i]());
    put(file);
    const int64_t grown = memory_to_open(x_);
    EXPECT_GT(grown, 0);
    EXPECT_LE(grown, static_cast<int64_t>(file.size()) + (64 << 20))
        << "file " << i;
  }
  put(file_of(metadata(strings)));
  EXPECT_EQ(Safetensors::open(x_).metadata().at("e").size(), kLongest);
}
#endif

}  // namespace
}  // namespace luna::io
