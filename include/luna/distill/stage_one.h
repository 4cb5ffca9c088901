#pragma once

#include <luna/data/dataset.h>
#include <luna/distill/student.h>
#include <luna/models/layered_model.h>

#include <functional>
#include <string>
#include <vector>

namespace luna::distill {

/// Adam over some steps, the rate rising over the first twentieth and falling
/// to 0 as half a cosine.
struct Phase {
  int64_t steps = 0;
  int64_t batch = 32;
  double lr = 1e-3;
};

struct StageOneOptions {
  StageOneLoss loss = StageOneLoss::kRows;
  uint64_t seed = 1;
  std::string autocast = "none";  ///< of the teacher; phi learns in float32
  std::function<bool()> stop{};
  std::function<void(int64_t step, int64_t steps, double loss)> progress{};
};

/// Trains the student's own parameters, and no others, on the texts or pictures
/// of a data set, whose labels it does not see; on a GPU with the data there
/// and a step as one CUDA graph. Gives the mean loss of each tenth of the
/// steps; fewer if it was stopped.
std::vector<double> train_student(Student& student, const data::Dataset& data,
                                  const Phase& phase,
                                  const StageOneOptions& options);

/// How far each layer's heads are from the teacher's, [layers][heads], as the
/// mean over some samples of a data set.
std::vector<std::vector<double>> head_divergence(Student& student,
                                                 const data::Dataset& data,
                                                 int64_t samples,
                                                 int64_t batch);

/// Some samples of a data set, chosen by a seed, on the student's device.
std::vector<data::Batch> first_batches(const Student& student,
                                       const data::Dataset& data,
                                       int64_t samples, int64_t batch,
                                       uint64_t seed);

}  // namespace luna::distill
