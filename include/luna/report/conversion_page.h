#pragma once

#include <luna/distill/conversion.h>
#include <luna/report/page.h>
#include <luna/report/table.h>

#include <string>

namespace luna::report {

/// The original and what each stage made of it, for page and terminal.
Table milestones_table(const distill::Conversion& conversion);

/// What a conversion came to. `folder`: where its model lies, with phi's start,
/// for psi to be drawn; what is not there is left out.
Page conversion_page(const distill::Conversion& conversion,
                     const std::string& folder);

}  // namespace luna::report
