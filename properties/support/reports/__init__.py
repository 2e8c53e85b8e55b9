"""What tests of the page share: sample records, and a reader of pages."""
