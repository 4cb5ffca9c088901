#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "io/safetensors_dtype.h"
#include "io/safetensors_header.h"
#include "io/strict_json.h"
#include "luna/io/atomic.h"
#include "luna/io/safetensors.h"

namespace luna::io {
namespace {

void check_tensor(const std::string& path, const std::string& name,
                  const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(name != "__metadata__", "write_safetensors: ", path,
                    ": expected a tensor's name, got ", in_quotes(name),
                    ", which the format reserves");
  TORCH_CHECK_VALUE(tensor.defined(), "write_safetensors: ", path, ": tensor ",
                    in_quotes(name),
                    ": expected a tensor, got an undefined one");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided && !tensor.is_quantized() &&
                        !tensor.is_nested() && !tensor.is_meta(),
                    "write_safetensors: ", path, ": tensor ", in_quotes(name),
                    ": expected a dense tensor with data, got ",
                    tensor.toString());
  TORCH_CHECK_VALUE(find_dtype(tensor.scalar_type()) != nullptr,
                    "write_safetensors: ", path, ": tensor ", in_quotes(name),
                    ": expected one of ", dtype_names(), ", got ",
                    c10::toString(tensor.scalar_type()));
}

/// Larger items first: then all of them lie at multiples of their size.
std::vector<size_t> data_order(const NamedTensors& tensors) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return tensors[a].second.element_size() > tensors[b].second.element_size();
  });
  return order;
}

std::string make_header(const std::string& path, const NamedTensors& tensors,
                        const std::vector<size_t>& order,
                        const std::map<std::string, std::string>& metadata) {
  std::vector<uint64_t> offsets(tensors.size());
  uint64_t end = 0;
  for (const size_t i : order) {
    offsets[i] = end;
    end += tensors[i].second.nbytes();
  }
  std::string text;
  const auto append = [&](const std::string& key, const std::string& value) {
    text += text.empty() ? '{' : ',';
    text += nlohmann::json(key).dump() + ':' + value;
  };
  try {
    if (!metadata.empty()) {
      append("__metadata__", nlohmann::json(metadata).dump());
    }
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto& [name, tensor] = tensors[i];
      const SafetensorsDtype* dtype = find_dtype(tensor.scalar_type());
      std::vector<int64_t> shape = tensor.sizes().vec();
      if (dtype->packed > 1 && shape.empty()) {
        TORCH_CHECK_VALUE(false, "write_safetensors: ", path, ": tensor ",
                          in_quotes(name), ": expected a dimension for ",
                          dtype->name, ", got none");
      }
      if (!shape.empty()) shape.back() *= dtype->packed;
      const nlohmann::ordered_json entry = {
          {"dtype", dtype->name},
          {"shape", shape},
          {"data_offsets", {offsets[i], offsets[i] + tensor.nbytes()}}};
      append(name, entry.dump());
    }
  } catch (const nlohmann::json::exception& error) {
    TORCH_CHECK_VALUE(false, "write_safetensors: ", path,
                      ": expected names and metadata in UTF-8, got ",
                      error.what());
  }
  text += text.empty() ? "{}" : "}";
  text.append((8 - text.size() % 8) % 8, ' ');
  TORCH_CHECK_VALUE(text.size() <= kMaxHeader, "write_safetensors: ", path,
                    ": expected a header of at most ", kMaxHeader,
                    " bytes, got ", text.size());
  return text;
}

}  // namespace

void write_safetensors(const std::string& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    check_tensor(path, name, tensor);
    TORCH_CHECK_VALUE(names.insert(name).second, "write_safetensors: ", path,
                      ": tensor ", in_quotes(name),
                      ": expected the name once, got it twice");
  }
  const std::vector<size_t> order = data_order(tensors);
  const std::string header = make_header(path, tensors, order, metadata);
  write_file_atomically(path, [&](FileWriter& file) {
    std::string size(kHeaderStart, '\0');
    for (size_t i = 0; i < kHeaderStart; ++i) {
      size[i] = static_cast<char>(header.size() >> 8 * i & 0xff);
    }
    file.write(size);
    file.write(header);
    for (const size_t i : order) {
      const at::Tensor plain = tensors[i]
                                   .second.detach()
                                   .resolve_conj()
                                   .resolve_neg()
                                   .cpu()
                                   .contiguous();
      file.write(plain.const_data_ptr(), plain.nbytes());
    }
  });
}

}  // namespace luna::io
