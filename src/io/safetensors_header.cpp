#include "io/safetensors_header.h"

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <string_view>

#include "io/safetensors_dtype.h"
#include "io/strict_json.h"

namespace luna::io {
namespace {

constexpr size_t kMaxDimensions = 64;  // LibTorch's own
constexpr const char* kMetadata = "__metadata__";

/// An entry as the header writes it.
struct RawEntry {
  std::string name{};
  std::optional<std::string> dtype{};
  std::optional<std::vector<uint64_t>> shape{};
  std::optional<std::vector<uint64_t>> offsets{};
};

/// The entry if its fields agree with each other; its offset is still that
/// within the data.
TensorEntry check_entry(const RawEntry& raw, const std::string& path) {
  const auto refuse = [&](const char* field, const auto&... message) {
    TORCH_CHECK_VALUE(false, path, ": tensor ", in_quotes(raw.name), ": ",
                      field, ": expected ", message...);
  };
  if (!raw.dtype) refuse("dtype", "it to be there, got none");
  if (!raw.shape) refuse("shape", "it to be there, got none");
  if (!raw.offsets) refuse("data_offsets", "them to be there, got none");

  const SafetensorsDtype* dtype = find_dtype(*raw.dtype);
  if (dtype == nullptr || dtype->dtype == at::ScalarType::Undefined) {
    refuse("dtype", "one of ", dtype_names(), ", got ", in_quotes(*raw.dtype),
           dtype == nullptr ? "" : ", for which LibTorch has no type");
  }
  TensorEntry entry{.name = raw.name, .dtype = dtype->dtype};
  const auto packed = static_cast<uint64_t>(dtype->packed);
  std::vector<uint64_t> shape = *raw.shape;
  if (packed > 1) {
    const uint64_t last = shape.empty() ? 0 : shape.back();
    if (shape.empty() || last % packed != 0) {
      refuse("shape", "a last dimension that is a multiple of ", packed,
             " for ", dtype->name, ", got ",
             shape.empty() ? "no dimension" : std::to_string(last));
    } else {
      shape.back() = last / packed;
    }
  }
  // LibTorch computes strides of empty tensors too, so their other dimensions
  // must not overflow either.
  const auto item = static_cast<int64_t>(c10::elementSize(dtype->dtype));
  int64_t bytes = item;
  bool empty = false;
  for (const uint64_t size : shape) {
    const int64_t factor = std::max<uint64_t>(size, 1);
    if (size > std::numeric_limits<int64_t>::max() ||
        __builtin_mul_overflow(bytes, factor, &bytes)) {
      refuse("shape", "a size that fits 63 bits, got an overflow at dimension ",
             size);
    }
    empty = empty || size == 0;
    entry.sizes.push_back(static_cast<int64_t>(size));
  }
  entry.bytes = empty ? 0 : bytes;

  const uint64_t begin = (*raw.offsets)[0];
  const uint64_t end = (*raw.offsets)[1];
  if (begin > end || end > std::numeric_limits<int64_t>::max()) {
    refuse("data_offsets", "begin <= end < 2^63, got [", begin, ", ", end, "]");
  }
  if (end - begin != static_cast<uint64_t>(entry.bytes)) {
    refuse("data_offsets", entry.bytes, " bytes for dtype ", dtype->name,
           " and shape ", c10::IntArrayRef(entry.sizes), ", got [", begin, ", ",
           end, "], ", end - begin, " bytes");
  }
  entry.offset = static_cast<int64_t>(begin);
  return entry;
}

class HeaderHandler : public StrictJson {
 public:
  HeaderHandler(const std::string& path, SafetensorsHeader& header)
      : StrictJson(path), header_(header) {}

  bool start_object(size_t) override {
    switch (state_) {
      case State::kStart:
        state_ = State::kTop;
        return true;
      case State::kTopValue:
        state_ = key_ == kMetadata ? State::kMetadata : State::kEntry;
        raw_ = RawEntry{.name = key_};
        return true;
      default:
        refuse("an object");
    }
  }

  bool end_object() override {
    if (state_ == State::kEntry) {
      header_.entries.push_back(check_entry(raw_, where()));
    }
    state_ = state_ == State::kTop ? State::kDone : State::kTop;
    return true;
  }

  bool key(string_t& key) override {
    switch (state_) {
      case State::kTop:
        key_ = std::move(key);
        if (key_ == kMetadata) {
          if (has_metadata_) refuse(kMetadata, "the key once", "it twice");
          has_metadata_ = true;
        } else {
          // twice: an entry on its way and the vector that grows
          keep(2 * sizeof(TensorEntry) + key_.size() + sizeof(uint32_t));
        }
        state_ = State::kTopValue;
        return true;
      case State::kMetadata:
        metadata_key_ = std::move(key);
        state_ = State::kMetadataValue;
        if (header_.metadata.contains(metadata_key_)) {
          refuse(place(), "the key once", "it twice");
        }
        return true;
      default:
        return entry_key(key);
    }
  }

  bool string(string_t& value) override {
    if (state_ == State::kMetadataValue) {
      keep(128 + metadata_key_.size() + value.size());
      header_.metadata.emplace(metadata_key_, std::move(value));
      state_ = State::kMetadata;
    } else if (state_ == State::kDtype) {
      raw_.dtype = std::move(value);
      state_ = State::kEntry;
    } else {
      refuse(in_quotes(value));
    }
    return true;
  }

  bool start_array(size_t) override {
    if (state_ == State::kShape && !in_array_) {
      raw_.shape.emplace();
    } else if (state_ == State::kOffsets && !in_array_) {
      raw_.offsets.emplace();
    } else {
      refuse("an array");
    }
    in_array_ = true;
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (!in_array_) refuse(std::to_string(value));
    const bool shape = state_ == State::kShape;
    std::vector<uint64_t>& values = shape ? *raw_.shape : *raw_.offsets;
    if (values.size() == (shape ? kMaxDimensions : 2)) refuse("more of them");
    values.push_back(value);
    return true;
  }

  bool end_array() override {
    if (state_ == State::kOffsets && raw_.offsets->size() != 2) {
      refuse(std::to_string(raw_.offsets->size()) + " of them");
    }
    if (state_ == State::kShape) keep(raw_.shape->size() * sizeof(int64_t));
    in_array_ = false;
    state_ = State::kEntry;
    return true;
  }

 protected:
  std::string place() const override {
    std::string text;
    switch (state_) {
      case State::kStart:
      case State::kTop:
      case State::kDone:
        return "header";
      case State::kMetadataValue:
        return std::string(kMetadata) + ": " + in_quotes(metadata_key_);
      case State::kMetadata:
        return kMetadata;
      default:
        text = key_ == kMetadata ? key_ : "tensor " + in_quotes(key_);
    }
    if (state_ == State::kDtype) text += ": dtype";
    if (state_ == State::kShape) text += ": shape";
    if (state_ == State::kOffsets) text += ": data_offsets";
    return text;
  }

  std::string expected() const override {
    switch (state_) {
      case State::kMetadataValue:
      case State::kDtype:
        return "a string";
      case State::kShape:
        return "an array of at most 64 integers from 0 to 2^64 - 1";
      case State::kOffsets:
        return "an array of two integers from 0 to 2^64 - 1";
      default:
        return "an object";
    }
  }

 private:
  enum class State {
    kStart,
    kTop,       // in the header's object
    kTopValue,  // after a tensor's name or __metadata__
    kMetadata,
    kMetadataValue,
    kEntry,  // in a tensor's object
    kDtype,
    kShape,
    kOffsets,
    kDone,
  };

  bool entry_key(const string_t& key) {
    bool twice = false;
    if (key == "dtype") {
      twice = raw_.dtype.has_value();
      state_ = State::kDtype;
    } else if (key == "shape") {
      twice = raw_.shape.has_value();
      state_ = State::kShape;
    } else if (key == "data_offsets") {
      twice = raw_.offsets.has_value();
      state_ = State::kOffsets;
    } else {
      refuse(place(), "dtype, shape and data_offsets",
             "the key " + in_quotes(key));
    }
    if (twice) refuse(place(), "the key once", "it twice");
    return true;
  }

  SafetensorsHeader& header_;
  State state_ = State::kStart;
  bool in_array_ = false;
  bool has_metadata_ = false;
  std::string key_;
  std::string metadata_key_;
  RawEntry raw_;
};

uint64_t read_header_size(std::span<const std::byte> file,
                          const std::string& path) {
  TORCH_CHECK_VALUE(file.size() >= kHeaderStart, path,
                    ": header size: expected ", kHeaderStart,
                    " bytes, got a file of ", file.size());
  uint64_t size = 0;
  for (size_t i = kHeaderStart; i-- > 0;) {
    size = size << 8 | std::to_integer<uint64_t>(file[i]);
  }
  // A size that cannot be says nothing if the file is of another kind.
  const uint64_t most = std::min<uint64_t>(kMaxHeader, file.size());
  const std::string_view start(reinterpret_cast<const char*>(file.data()),
                               std::min<size_t>(file.size(), 16));
  TORCH_CHECK_VALUE(size <= most || start.substr(kHeaderStart).starts_with('{'),
                    path,
                    ": not safetensors: expected a header that begins with "
                    "'{' after 8 bytes, got a file that begins with ",
                    in_quotes(std::string(start)));
  TORCH_CHECK_VALUE(size <= kMaxHeader, path,
                    ": header size: expected at most ", kMaxHeader,
                    " bytes, got ", size);
  TORCH_CHECK_VALUE(size <= file.size() - kHeaderStart, path,
                    ": header size: expected at most the ",
                    file.size() - kHeaderStart,
                    " bytes that follow it in the file, got ", size);
  return size;
}

/// Sorts by name and refuses names that come twice.
void index_names(SafetensorsHeader& header, const std::string& path) {
  const std::vector<TensorEntry>& entries = header.entries;
  header.by_name.resize(entries.size());
  std::iota(header.by_name.begin(), header.by_name.end(), 0U);
  std::sort(header.by_name.begin(), header.by_name.end(),
            [&](uint32_t a, uint32_t b) {
              return entries[a].name < entries[b].name;
            });
  const auto twice =
      std::adjacent_find(header.by_name.begin(), header.by_name.end(),
                         [&](uint32_t a, uint32_t b) {
                           return entries[a].name == entries[b].name;
                         });
  TORCH_CHECK_VALUE(twice == header.by_name.end(), path, ": tensor ",
                    in_quotes(entries[*twice].name),
                    ": expected the name once, got it twice");
}

/// Refuses holes and overlaps: each tensor begins where the one before ends,
/// the first at 0, the last ends with the file.
void check_coverage(const SafetensorsHeader& header, uint64_t data_size,
                    const std::string& path) {
  std::vector<uint32_t> order(header.entries.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&](uint32_t i, uint32_t j) {
    const TensorEntry& a = header.entries[i];
    const TensorEntry& b = header.entries[j];
    return a.offset != b.offset ? a.offset < b.offset : a.bytes < b.bytes;
  });
  int64_t end = 0;
  for (const uint32_t i : order) {
    const TensorEntry& entry = header.entries[i];
    TORCH_CHECK_VALUE(entry.offset == end, path, ": tensor ",
                      in_quotes(entry.name), ": data_offsets: expected begin ",
                      end, ", where the tensor before it ends, got ",
                      entry.offset,
                      entry.offset < end ? " (an overlap)" : " (a hole)");
    end += entry.bytes;
  }
  TORCH_CHECK_VALUE(static_cast<uint64_t>(end) == data_size, path,
                    ": file size: expected ", end,
                    " bytes of tensors after the header, got ", data_size);
}

}  // namespace

SafetensorsHeader read_header(std::span<const std::byte> file,
                              const std::string& path) {
  const uint64_t size = read_header_size(file, path);
  const std::string_view text(
      reinterpret_cast<const char*>(file.data()) + kHeaderStart, size);
  TORCH_CHECK_VALUE(text.starts_with('{'), path,
                    ": header: expected '{' as its first byte, got ",
                    text.empty() ? "nothing" : in_quotes(text.substr(0, 1)));
  SafetensorsHeader header;
  HeaderHandler handler(path, header);
  handler.parse(text);
  index_names(header, path);
  check_coverage(header, file.size() - kHeaderStart - size, path);
  for (TensorEntry& entry : header.entries) {
    entry.offset += static_cast<int64_t>(kHeaderStart + size);
  }
  return header;
}

}  // namespace luna::io
